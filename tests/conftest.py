"""How properties are tried (the same examples every time under CI, new ones elsewhere), and on how many threads."""

import os

from hypothesis import settings

# Tiny models gain nothing from a second thread, and tests run servers beside each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

settings.register_profile("ci", derandomize=True, deadline=None)
settings.register_profile("developer", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "developer")
