"""Weights that a configuration centre writes into a file."""

import logging
from collections import Counter
from pathlib import Path
from typing import Any

import yaml

from sglk.cluster.router import Router
from sglk.errors import RequestError

logger = logging.getLogger(__name__)

MAX_BYTES = 65536
"""A longer file is not one of weights."""

Stamp = tuple[int, int, int]


class _PlainLoader(yaml.SafeLoader):
    """Reads YAML without aliases, by which a few lines can stand for more than memory holds, and names no key twice."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("it has an alias, `*name`; write the values out")
        return super().compose_node(parent, index)

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        names = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        if (twice := next(iter(names.most_common(1)), ("", 0)))[1] > 1:
            raise yaml.YAMLError(f"{twice[0][:60]!r} stands there twice; give each group one weight")
        return node


class WeightsFile:
    """A YAML or JSON file `group: weight`, put into force whenever it changes.

    Replace it by renaming a whole file over it, as a reader may come at any time. A bad or absent file changes nothing:
    `error` and the log say what is wrong until it is good again.
    """

    def __init__(self, path: Path, router: Router) -> None:
        self.path = path
        self.error: str | None = None
        """What is wrong with the file as it is now."""
        self._router = router
        self._stamp: Stamp | None = None

    def tick(self) -> None:
        """Read the file if it has changed."""
        try:
            stat = self.path.stat()
            stamp = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
            if stamp == self._stamp:
                return
            shares = read_weights(self.path)
        except OSError as error:
            self._stamp = None
            self._complain(error.strerror or str(error))
            return
        except RequestError as error:
            self._stamp = stamp
            self._complain(str(error))
            return
        self._stamp = stamp
        self._enforce(shares)

    def _enforce(self, shares: dict[str, Any]) -> None:
        current = self._router.weights.shares
        try:
            if {**current, **shares} != current:
                self._router.set_weights(shares, "file", str(self.path))
        except RequestError as error:
            self._complain(str(error))
        else:
            self.error = None

    def _complain(self, reason: str) -> None:
        if reason != self.error:
            self.error = reason
            logger.error("weights file %s: %s; the weights stay as they are", self.path, reason)


def read_weights(path: Path) -> dict[str, Any]:
    """Return the mapping in the file; raises OSError, or RequestError when it is not one of weights."""
    if not path.is_file():
        # To open a pipe, say, would be to wait for its writer.
        raise RequestError("it is not a file; name one that holds `group: weight` lines")
    with path.open("rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise RequestError(f"more than {MAX_BYTES} bytes; write one line `group: weight` per device group")
    try:
        loaded = yaml.load(content.decode(), _PlainLoader)
    # ValueError: such as the date 2001-99-99, and what is not UTF-8.
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        raise RequestError(f"neither YAML nor JSON ({' '.join(str(error).split())})") from None
    if isinstance(loaded, dict) and set(loaded) == {"weights"}:
        loaded = loaded["weights"]
    if not isinstance(loaded, dict) or not loaded or not all(isinstance(name, str) for name in loaded):
        raise RequestError("it holds no mapping of group names to weights, such as `gpu: 80`")
    return loaded
