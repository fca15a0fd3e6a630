"""`sglk advise`: what a server's figures mean, and what to try."""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sglk.adviser.history import History
from sglk.adviser.snapshot import Snapshot, of_one_process, read_snapshot
from sglk.commands.flags import common_flags
from sglk.commands.traffic import KEY_VARIABLE, Server, trusted
from sglk.errors import ConfigError, RunError

_USAGE = """usage: sglk advise [URL | FILE ...] [--key KEY] [--cacert FILE] [--json]

Name causes in the figures of a running server, or in recorded ones, each with its evidence and a command to try.

arguments
  URL                           a server, http://127.0.0.1:8000 unless given
  FILE ...                      what `curl -s URL/metrics` gave, one or several times, oldest first

flags
  --url URL                     the same server, as `sglk traffic` takes it
  --key KEY                     the server's admin key; $SGLK_ADMIN_API_KEY unless given
  --cacert FILE                 PEM file of the certificate to trust, such as the server's own self-signed one
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
    options, words = _options(flags.arguments)
    unknown = [word for word in words if word.startswith("-")]
    if unknown:
        raise ConfigError(f"flag {unknown[0]!r} is unknown; see `sglk advise --help`")
    words = [options["--url"], *words] if "--url" in options else words or ["http://127.0.0.1:8000"]
    asked = "--url" in options or words[0].startswith(("http://", "https://"))
    found = _from_server(words, options) if asked else _from_files(words)
    if "--json" in flags.switches:
        print(json.dumps(found, indent=2))
        return 0
    for each in found:
        print(f"{each['group']}: {each['cause']}\n  evidence: {each['evidence']}\n  try:      {each['command']}")
    if not found:
        print("nothing stands out")
    return 0


def _options(arguments: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Return the flags that take a value, and the words that are left."""
    options: dict[str, str] = {}
    words, rest = iter(arguments), []
    for word in words:
        flag, equals, value = word.partition("=")
        if flag not in ("--url", "--key", "--cacert"):
            rest.append(word)
        elif not (given := value if equals else next(words, "")):
            raise ConfigError(f"{flag} needs a value; see `sglk advise --help`")
        else:
            options[flag] = given
    return options, rest


def _from_server(words: Sequence[str], options: Mapping[str, str]) -> list[dict[str, Any]]:
    if len(words) > 1:
        raise ConfigError(f"one URL at a time; {words[1]!r} is one too many")
    key = options.get("--key") or os.environ.get(KEY_VARIABLE)
    answer = Server(words[0], key, trusted(options.get("--cacert"))).get("/advice")
    if not isinstance(answer, list):
        raise RunError(f"{words[0]} answered {type(answer).__name__} and is no sglk server")
    return answer


def _from_files(words: Sequence[str]) -> list[dict[str, Any]]:
    snapshots = {word: _recorded(word) for word in words}
    ordered = of_one_process(snapshots.values())
    if left_out := [word for word, each in snapshots.items() if each not in ordered]:
        note = "of another server than the latest one, or of the time before it was started again; left out"
        print(f"sglk: {', '.join(left_out)}: {note}", file=sys.stderr)
    last = ordered[-1]
    facts = {name: {"url": "URL", "chip": _chip(last, name), "model": "MODEL"} for name in last.groups}
    return [asdict(each) for each in History(ordered).advice(facts)]


def _chip(snapshot: Snapshot, group: str) -> str:
    return " or ".join(sorted(snapshot.chips.get(group, ()))) or "CHIP"


def _recorded(word: str) -> Snapshot:
    try:
        return read_snapshot(Path(word).read_text(encoding="utf-8"))
    except ConfigError as error:
        raise ConfigError(f"{word}: {error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{word} is not UTF-8 text: {error.reason}") from error
    except OSError as error:
        raise ConfigError(f"{word}: {error.strerror}; give a URL or files of recorded metrics") from error
