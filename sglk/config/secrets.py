"""Keys and passwords, hidden wherever a configuration is shown or recorded."""

import re
from typing import Any

_SECRET = re.compile(r"(^|_)(api_?key|key|secret|password|passwd|(access|auth|bearer|hf)_?token|token)$", re.IGNORECASE)
_CREDENTIALS = re.compile(r"(?<=://)([^/@:\s]*):[^/@\s]*@")

MASK = "***"


def masked(tree: Any, name: str = "") -> Any:
    """Return a copy of a tree of dicts and lists with the text of secret keys and the passwords of URLs replaced."""
    if isinstance(tree, dict):
        return {key: masked(value, str(key)) for key, value in tree.items()}
    if isinstance(tree, list):
        return [masked(value, name) for value in tree]
    if not isinstance(tree, str) or not tree:
        return tree
    if _SECRET.search(name.replace("-", "_")):
        return MASK
    return _CREDENTIALS.sub(rf"\1:{MASK}@", tree)
