"""`sglk advise`: what a server's figures mean, and what to try."""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sglk.adviser.history import History
from sglk.adviser.snapshot import Snapshot, read_snapshot
from sglk.commands.flags import common_flags
from sglk.commands.traffic import KEY_VARIABLE, Server
from sglk.errors import ConfigError

_USAGE = """usage: sglk advise [URL | FILE ...] [--json]

Name causes in the figures of a running server, or in recorded ones, each with its evidence and a command to try.

arguments
  URL                           a server, http://127.0.0.1:8000 unless given; its admin key is $SGLK_ADMIN_API_KEY
  FILE ...                      what `curl -s URL/metrics` gave, one or several times, oldest first

flags
  --json                        a list of {rule, group, cause, evidence, command}

examples
  sglk advise
  sglk advise http://gpu-box:8000
  sglk advise before.prom after.prom"""


def run(arguments: Sequence[str]) -> int:
    """Print the advice; returns 0 whether or not there is any."""
    flags = common_flags(arguments, switches=("--json",))
    if flags.help:
        print(_USAGE)
        return 0
    words = flags.arguments or ["http://127.0.0.1:8000"]
    unknown = [word for word in words if word.startswith("-")]
    if unknown:
        raise ConfigError(f"flag {unknown[0]!r} is unknown; see `sglk advise --help`")
    found = _from_server(words) if words[0].startswith(("http://", "https://")) else _from_files(words)
    if "--json" in flags.switches:
        print(json.dumps(found, indent=2))
        return 0
    for each in found:
        print(f"{each['group']}: {each['cause']}\n  evidence: {each['evidence']}\n  try:      {each['command']}")
    if not found:
        print("nothing stands out")
    return 0


def _from_server(words: Sequence[str]) -> list[dict[str, Any]]:
    if len(words) > 1:
        raise ConfigError(f"one URL at a time; {words[1]!r} is one too many")
    answer = Server(words[0], os.environ.get(KEY_VARIABLE)).get("/advice")
    assert isinstance(answer, list)
    return answer


def _from_files(words: Sequence[str]) -> list[dict[str, Any]]:
    snapshots = [_recorded(word) for word in words]
    ordered = sorted(snapshots, key=lambda each: each.at_s)
    chips = " or ".join(sorted(ordered[-1].chips)) or "..."
    facts = {name: {"url": "http://127.0.0.1:8000", "chip": chips, "model": "..."} for name in ordered[-1].groups}
    return [asdict(each) for each in History(ordered).advice(facts)]


def _recorded(word: str) -> Snapshot:
    try:
        return read_snapshot(Path(word).read_text(encoding="utf-8"))
    except ConfigError as error:
        raise ConfigError(f"{word}: {error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{word} is not UTF-8 text: {error.reason}") from error
    except OSError as error:
        raise ConfigError(f"{word}: {error.strerror}; give a URL or files of recorded metrics") from error
