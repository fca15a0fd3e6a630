"""Words that can stand next on a command line, for shell completion."""

from collections.abc import Sequence

from sglk.cli import COMMANDS, command_position
from sglk.config import check, check_bench, check_engine, check_render, check_service, check_study
from sglk.config.keys import GROUPS, ROOTS, leaves
from sglk.config.search_path import search_path
from sglk.plugins import backend_names

_COMMON = ("--help", "--debug", "--config-dir")
_REMOTE = ("--url", "--key", "--cacert", "--json")
_FLAGS = {
    "serve": ("--dry-run",),
    "tune": ("--dry-run",),
    "report": ("--metric", "--out", "--json"),
    "show": ("--command", "--json", "--yaml"),
    "chips": ("--json",),
    "models": ("--json",),
    "plugins": ("--json",),
    "doctor": ("--json",),
    "ops": ("--json",),
    "plan": ("--json",),
    "simulate": ("--json",),
    "traffic": (
        *_REMOTE,
        *("--timeout", "--force", "--to", "--step", "--every", "--slo", "--min-requests", "--follow"),
    ),
    "advise": _REMOTE,
}
_COMPOSING = {
    "serve": "serve",
    "bench": "bench",
    "tune": "tune",
    "show": "tune",
    "doctor": "serve",
    "ops": "ops",
    "plan": "plan",
    "render": "render",
    "calibrate": "calibrate",
    "simulate": "simulate",
}
"""Command -> the command whose keys it takes; `show` takes those of all."""

_VALUES = {
    "runtime.schedule_policy": check.POLICIES,
    "runtime.load_format": check.LOAD_FORMATS,
    "runtime.dtype": check.DTYPES,
    "backend.fallback": check.FALLBACKS,
    "server.log_level": check_service.LOG_LEVELS,
    "server.log_format": check_service.LOG_FORMATS,
    "engine.name": check_engine.ENGINES,
    "target": check_render.TARGETS,
    "plan.engine": check.PLANNED_ENGINES,
    "calibration": ("auto", "none"),
    "workload.kind": check_bench.WORKLOADS,
    "workload.arrival": check_bench.ARRIVALS,
    "bench.api": check_bench.APIS,
    "bench.cache": check_bench.CACHES,
    "search.sampler": check_study.SAMPLERS,
    "search.pruner": check_study.PRUNERS,
}


def candidates(words: list[str]) -> list[str]:
    """Return the completions of the last of `words` (what stands after `sglk`, the last one unfinished or empty).

    A candidate that ends in `=` or `.` goes on; all others are whole.
    """
    *before, current = words or [""]
    position = command_position(before)
    if position is None:
        return _starting(current, [*COMMANDS, "--help", "--version"])
    command = before[position]
    if before[-1] == "--command":
        return _starting(current, list(ROOTS))
    if command == "completion":
        return _starting(current, ["bash", "zsh", "fish"])
    if current.startswith("-"):
        return _starting(current, [*_COMMON, *_FLAGS.get(command, ())])
    if command == "traffic":
        return _starting(current, list(_traffic_words(before[position + 1 :])))
    if command not in _COMPOSING:
        return []
    if command == "ops" and "=" not in current and "." not in current:
        return _op_words(before[position:], current) + _settings(current, command)
    return _settings(current, _COMPOSING[command])


def _traffic_words(before: list[str]) -> Sequence[str]:
    """Return the verbs of `sglk traffic`; what follows them is groups, which the running server knows."""
    # An HTTP client comes with the verbs, which no other completion waits for.
    from sglk.commands.traffic import RAMP_ORDERS, VERBS

    if not before:
        return VERBS
    return RAMP_ORDERS if before == ["ramp"] else ()


def _op_words(before: list[str], current: str) -> list[str]:
    """Return what `sglk ops` can do, then the names of ops."""
    # Arrays come with the names, which no other completion waits for.
    from sglk.commands.ops import OPS, VERBS

    return _starting(current, list(OPS if any(word in VERBS for word in before) else VERBS))


def _settings(current: str, command: str) -> list[str]:
    key, equals, _ = current.partition("=")
    if equals:
        return _starting(current, [f"{key}={value}" for value in _values(key, command)])
    words = [f"{group}=" for group in GROUPS[command]]
    words += [f"{path}=" for path in leaves(ROOTS[command]) if not path.startswith(("profile.", "chip.", "model."))]
    if not current or "." in current:
        return _starting(
            current, words if "." in current else [word for word in words if "." not in word] + _nodes(words)
        )
    return _starting(current, words)


def _nodes(words: list[str]) -> list[str]:
    return sorted({f"{word.partition('.')[0]}." for word in words if "." in word})


def _values(key: str, command: str) -> list[str]:
    if key in GROUPS[command]:
        return sorted({*search_path().options(key), *(backend_names() if key == "backend" else ())})
    known = leaves(ROOTS[command]).get(key)
    if known is not None and known.type is bool:
        return ["true", "false"]
    return list(_VALUES.get(key, ()))


def _starting(current: str, words: list[str]) -> list[str]:
    return [word for word in dict.fromkeys(words) if word.startswith(current)]
