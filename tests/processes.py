"""What has become of other processes."""

from pathlib import Path


def is_alive(pid: int) -> bool:
    """Whether the process exists and is not a zombie that waits for its parent."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
