"""`sglk ops`: the ops of a model on a chip, listed, tested and timed one by one."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from fnmatch import filter as matching
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

import sglk
from sglk import atomic_file
from sglk.backends.work import FORMULAS
from sglk.commands.flags import common_flags
from sglk.commands.help import command_help
from sglk.commands.op_tables import list_table, test_table, time_tables
from sglk.commands.progress import watched
from sglk.commands.terminal import console, warn
from sglk.config.compose import compose
from sglk.config.keys import GROUPS, lookup
from sglk.config.ops_schema import OpsConfig
from sglk.config.tensor_parallel import ranks_of
from sglk.errors import ConfigError, RunError, SglkError, nearest
from sglk.operators.remote import RemoteWorkbench, timed, tried
from sglk.operators.results import STEPS, CalledOp, Outcome, Share, Trial, Unmeasured, shares
from sglk.planner.placement import place

SCHEMA_VERSION = 1
"""Of the JSON documents: raised when a field changes its meaning or goes."""

VERBS = ("list", "test", "bench")
OPS = sorted(FORMULAS)
"""Names of all ops of the seam."""

_SUMMARY = (
    "list: every op of a model at its real shapes, who runs it, and why. test: every implementation against the\n"
    "reference; exit code 1 when one is wrong, with a script that shows it again. bench: time and share of the peak,\n"
    "hottest first. OP is a name or a pattern such as 'linear*'; none = all. No weights are needed."
)
_EXAMPLES = (
    "sglk ops list chip=l20 model=qwen32b backend=sim",
    "sglk ops test chip=cpu model=smollm2 'attention_*'",
    "sglk ops bench chip=cuda model=qwen7b ops.batch=32 ops.context=4096",
)
_FLAGS = (("--json", "one document, with everything that the tables leave out"),)


def run(arguments: Sequence[str]) -> int:
    """List, test or time ops; raises RunError, exit code 1, when a test fails."""
    flags = common_flags(arguments, switches=("--json",))
    if flags.help:
        command_help("ops list|test|bench [OP ...]", _SUMMARY, OpsConfig, _EXAMPLES, _FLAGS)
        return 0
    verb, ops, overrides = _understood(flags.arguments)
    composed = place(compose("ops", overrides, flags.config_dir), flags.config_dir).composed
    warn(composed.warnings)
    if verb == "test":
        warn(_unwritable(composed.config))
    # Libraries of torch end the process where there is no current directory, with words of their own.
    Path.cwd()
    run_verb = {"list": _list, "test": _test, "bench": _bench}[verb]
    with RemoteWorkbench(composed.config) as bench:
        facts = bench.ask("facts")
        config = replace(composed.config, ops=facts["ops"])
        found = run_verb(config, bench, tuple(ops))
    head = _head(config, facts)
    if "--json" in flags.switches:
        print(json.dumps({**head, **found.document}, indent=2, ensure_ascii=False))
    else:
        _print(found, _note(config, head))
    if found.failure is not None:
        raise RunError(found.failure)
    return 0


@dataclass(frozen=True)
class _Found:
    """What a verb came to, in both forms."""

    document: dict[str, Any]
    tables: Sequence[Table]
    notes: Sequence[Text] = ()
    failure: str | None = None


def _unwritable(config: OpsConfig) -> Iterator[str]:
    """Say beforehand that the scripts of what fails could not be written; where all passes, none is missed."""
    if (why := atomic_file.obstacle(Path(config.ops.failures) / "script.py")) is not None:
        yield f"cannot write to ops.failures={config.ops.failures}: {why}; what fails will have no script"


def _understood(words: Sequence[str]) -> tuple[str, list[str], list[str]]:
    """Return the verb, the ops that are meant (none = all) and the overrides."""
    plain = [word for word in words if "=" not in word and not word.startswith(("~", "+", "-"))]
    verb = plain[0] if plain else None
    if verb not in VERBS:
        hint = (nearest(verb, VERBS) if verb else "") or f"; write one of {', '.join(VERBS)}"
        raise ConfigError(f"`sglk ops` does not know {verb!r}{hint}" if verb else f"say what to do with ops{hint}")
    settings = [word for word in plain[1:] if word in GROUPS["ops"] or lookup(OpsConfig, word) is not None]
    names = [name for word in plain[1:] if word not in settings for name in _ops_called(word)]
    return verb, list(dict.fromkeys(names)), [word for word in words if word not in plain or word in settings]


def _ops_called(pattern: str) -> list[str]:
    found = matching(OPS, pattern)
    if not found:
        hint = nearest(pattern, OPS) or f"; ops: {', '.join(OPS)}"
        raise ConfigError(f"op {pattern!r} is unknown{hint}")
    return found


def _require_some(found: Sequence[object], ops: Sequence[str], who: str) -> None:
    if not found:
        raise ConfigError(f"{who} none of {', '.join(ops or OPS)}; `sglk ops list` shows what there is")


def _list(config: OpsConfig, bench: RemoteWorkbench, ops: tuple[str, ...]) -> _Found:
    found = [each for each in bench.ask("listed") if not ops or each.op in ops]
    _require_some(found, ops, f"model {config.model.name!r} has")
    fallbacks = sum(each.fallback for each in found)
    end = "would refuse" if config.backend.fallback != "forbid" else "refuses"
    note = f"{fallbacks} of {len(found)} shape classes run the reference; backend.fallback=forbid {end} to start"
    notes = [Text(note, style="yellow")] if fallbacks else []
    return _Found({"ops": [asdict(each) for each in found]}, [list_table(found)], notes)


def _test(config: OpsConfig, bench: RemoteWorkbench, ops: tuple[str, ...]) -> _Found:
    planned: list[Trial] = bench.ask("trials", ops)
    _require_some(planned, ops, f"backend {config.backend.name!r} offers an implementation of")
    found = list(watched(tried(bench, ops, planned), len(planned), "testing", config.ops.progress))
    gone = bench.gone
    failed = [outcome for outcome in found if outcome.problem is not None]
    scripts = _write_scripts(found, bench, ops)
    document = {"results": [outcome.facts() for outcome in found], "scripts": [str(path) for path in scripts]}
    names = ", ".join(dict.fromkeys(outcome.trial.op for outcome in failed))
    failures = [f"{len(failed)} of {len(found)} trials failed: {names}"] if failed else []
    failure = _together(failures, gone and f"not all were made, as {gone}")
    notes = [Text(f"to see it again: python {path}") for path in scripts]
    return _Found(document, [test_table(found)], notes, failure)


def _write_scripts(found: Sequence[Outcome], bench: RemoteWorkbench, ops: tuple[str, ...]) -> list[Path]:
    """Write one script for each implementation that failed, of the first case in which it did."""
    first: dict[tuple[str, int], tuple[int, str]] = {}
    for number, outcome in enumerate(found):
        if outcome.problem is not None:
            first.setdefault((outcome.trial.op, outcome.trial.offer), (number, outcome.problem))
    written: list[Path] = []
    try:
        written.extend(bench.ask("script", ops, number, problem) for number, problem in first.values())
    except SglkError as error:
        # Scripts are not worth the results.
        warn([str(error)])
    return written


def _bench(config: OpsConfig, bench: RemoteWorkbench, ops: tuple[str, ...]) -> _Found:
    called: list[CalledOp] = bench.ask("called", ops)
    _require_some(called, ops, f"a step of model {config.model.name!r} calls")
    progress = timed(bench, ops, called, config.ops.time_s)
    found = list(watched(progress, len(called), "timing", config.ops.progress))
    steps: dict[str, list[Share]] = {step: shares(step, called, found) for step in STEPS}
    unmeasured = [result for result in found if isinstance(result, Unmeasured)]
    told = [each for each in unmeasured if each.reason != bench.gone]
    warn(f"{each.op} was not timed at one shape: {each.reason}" for each in told)
    rows = {step: [asdict(row) for row in found] for step, found in steps.items()}
    document = {**rows, "unmeasured": [asdict(each) for each in unmeasured]}
    lost = ", ".join(dict.fromkeys(each.op for each in unmeasured if each.lost))
    failures = [f"not timed, as they end their process, ruin the device or do not come back: {lost}"] if lost else []
    failure = _together(failures, bench.gone and f"not all were timed, as {bench.gone}")
    return _Found(document, list(time_tables(steps, config, whole=not ops)), failure=failure)


def _together(failures: Sequence[str], end: str | None) -> str | None:
    return "; ".join([*failures, *([end] if end else [])]) or None


def _head(config: OpsConfig, facts: dict[str, Any]) -> dict[str, Any]:
    """What every document says of where its numbers come from."""
    return {
        "schema_version": SCHEMA_VERSION,
        "sglk": sglk.__version__,
        "kind": facts["kind"],
        "chip": config.chip.name,
        "backend": config.backend.name,
        "model": config.model.name,
        "device": facts["device"],
        "ops_config": asdict(config.ops),
        "peak": {
            "bandwidth_gb_s": config.chip.bandwidth_gb_s,
            "tflops": dict(config.chip.peak_tflops),
            "quality": {name: source.quality for name, source in config.chip.figures.items()},
        },
    }


def _note(config: OpsConfig, head: dict[str, Any]) -> Text:
    kind = "simulated: no value and no time is of real hardware; " if head["kind"] == "simulated" else ""
    ranks = f", one of {ranks_of(config.runtime)} ranks" if ranks_of(config.runtime) > 1 else ""
    text = f"\n{kind}{config.model.name} on {config.chip.name} by backend {config.backend.name}{ranks}"
    return Text(f"{text}: {head['device']['name']}", style="dim")


def _print(found: _Found, note: Text) -> None:
    screen = console()
    for table in found.tables:
        screen.print(table)
    for line in (note, *found.notes):
        screen.print(line, soft_wrap=True)
