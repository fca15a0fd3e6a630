"""Run every benchmark, each in its own process: `python -m benchmarks [--quick]`, into benchmarks/results."""

import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
SHARED = (
    "__init__",
    "__main__",
    "result",
    "f16_file",
    "fidelity_cells",
    "fidelity_pace",
    "fidelity_page",
    "fidelity_score",
    "kunlun_page",
)


def main() -> int:
    """Return 1 if a benchmark failed; the others run all the same."""
    names = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem not in SHARED)
    failed = []
    for name in names:
        print(f"== {name}", flush=True)
        result = FOLDER / "results" / f"{name}.json"
        command = [sys.executable, "-m", f"benchmarks.{name}", *sys.argv[1:], "--json", str(result)]
        if subprocess.run(command, cwd=FOLDER.parent, check=False).returncode != 0:
            failed.append(name)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
