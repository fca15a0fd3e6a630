"""Messages of sglk, taken apart again."""


def parted(message: str) -> tuple[str, str]:
    """Return a message in two: what is wrong, and what to do; the second is empty where the message has no advice."""
    why, _, todo = message.rpartition("; ")
    return (why, todo) if why else (todo, "")
