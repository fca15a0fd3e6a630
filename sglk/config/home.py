"""Paths that begin with `~`."""

from pathlib import Path


def expanded(text: str) -> Path:
    """Return the path that `text` means to a shell: a leading `~` or `~user` is a home folder, any other `~` a name.

    Like in a shell, `~name` of an unknown user stays as it is.
    """
    path = Path(text)
    # Not left to `expanduser`: to it `./~name` begins with a tilde too.
    if not text.startswith("~"):
        return path
    try:
        return path.expanduser()
    except RuntimeError:
        return path
