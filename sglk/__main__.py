"""`python -m sglk`."""

import sys

from sglk.cli import main

sys.exit(main())
