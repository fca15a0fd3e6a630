"""How rendered files begin, and how they write YAML."""

from collections.abc import Sequence
from typing import Any

import yaml

HEADER = "Rendered by sglk; change the deployment and render it again."


def as_yaml(*documents: Any) -> str:
    """Return YAML documents, keys in the order given and no anchors."""
    return yaml.dump_all(
        documents, Dumper=_Dumper, sort_keys=False, default_flow_style=False, width=120, allow_unicode=True
    )


class _Dumper(yaml.SafeDumper):
    """Repeats what appears twice, and writes text of several lines as it is."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def commented(lines: Sequence[str]) -> str:
    """Return lines as comments, each of them one line whatever is in it."""
    return "".join(f"# {one_line(line)}\n" for line in lines)


def one_line(text: str) -> str:
    """Return text with what could end a line, or hide one, written as an escape."""
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)
