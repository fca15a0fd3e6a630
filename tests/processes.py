"""What has become of other processes."""

from pathlib import Path


def is_alive(pid: int) -> bool:
    """Whether the process exists and is not a zombie, whose end nobody has asked for yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
