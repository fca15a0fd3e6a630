"""Flags in the GNU style, which sglk does not take: each gets the override to type in its place."""

import difflib
from collections.abc import Sequence

from sglk.config.keys import leaves
from sglk.config.quoting import typed
from sglk.errors import ConfigError

ALIASES = {
    "backend": "backend",
    "chip": "chip",
    "context-len": "runtime.context_length",
    "device": "chip",
    "device-groups": "groups",
    "gpu-memory-utilization": "runtime.mem_fraction_static",
    "max-model-len": "runtime.context_length",
    "max-num-batched-tokens": "runtime.max_prefill_tokens",
    "max-num-seqs": "runtime.max_running_requests",
    "model": "model",
    "model-name": "server.served_model_name",
    "model-path": "model",
    "num-prompts": "workload.num_requests",
    "profile": "profiles",
    "radix-attention-min-len": "runtime.radix_min_len",
    "random-input-len": "workload.input_len",
    "random-output-len": "workload.output_len",
    "request-rate": "workload.rate",
    "seed": "runtime.random_seed",
    "tensor-parallel-size": "runtime.tp_size",
    "tp": "runtime.tp_size",
    "n-trials": "search.n_trials",
    "study-name": "study.name",
    "workload": "workload",
}
"""Flags of SGLang, vLLM and Optuna that mean one of our keys under another name."""


def refuse_flags(arguments: Sequence[str], root: type) -> None:
    """Raise ConfigError when `arguments` holds words that begin with a dash; the message says what to type."""
    given: list[str] = []
    advice: list[str] = []
    unknown: list[str] = []
    position = 0
    while position < len(arguments):
        word = arguments[position]
        position += 1
        if not _is_flag(word):
            continue
        name, equals, value = word.lstrip("-").partition("=")
        if (
            not equals
            and position < len(arguments)
            and not _is_flag(arguments[position])
            and _is_value(arguments, position)
        ):
            value, equals = arguments[position], " "
            position += 1
        given.append(f"{word} {value}" if equals == " " else word)
        override = _override(name, value if equals else None, root)
        (advice if override else unknown).append(override or word.partition("=")[0])
    if not given:
        return
    if unknown:
        raise ConfigError(
            f"flag {unknown[0]} is unknown{_near(unknown[0], root)}; settings are typed as key=value: see --help"
        )
    raise ConfigError(f"write {' '.join(advice)} in place of {' '.join(given)}")


def _is_flag(word: str) -> bool:
    return len(word) > 1 and word[0] == "-" and (word[1] == "-" or word[1].isalpha())


def _is_value(arguments: Sequence[str], position: int) -> bool:
    # `--disable-radix-cache chip=cpu`: the second word is an override, not the flag's value.
    return "=" not in arguments[position]


def _override(name: str, value: str | None, root: type) -> str | None:
    plain = name.lower().replace("_", "-")
    negated = plain.startswith("no-")
    key = _key(plain.removeprefix("no-") if negated else plain, root)
    if key is None:
        return None
    if value is None:
        return f"{key}={'false' if negated else _bare_value(key, root)}"
    return typed(key, value)


def _bare_value(key: str, root: type) -> str:
    known = leaves(root).get(key)
    return "true" if known is not None and known.type is bool else "VALUE"


def _key(plain: str, root: type) -> str | None:
    known = leaves(root)
    if plain in ALIASES:
        alias = ALIASES[plain]
        return alias if "." not in alias or alias in known else None
    tails = [path for path in known if path.rpartition(".")[2].replace("_", "-") == plain or path == plain]
    preferred = [path for path in tails if path.startswith(("runtime.", "server."))] or tails
    return preferred[0] if preferred else None


def _near(flag: str, root: type) -> str:
    tails = {path.rpartition(".")[2].replace("_", "-"): path for path in reversed(leaves(root))}
    close = difflib.get_close_matches(flag.lstrip("-"), [*tails, *ALIASES], n=1, cutoff=0.6)
    # A single letter is near to nothing in particular.
    if len(flag.lstrip("-")) == 1:
        return ""
    return f"; did you mean {tails.get(close[0]) or ALIASES[close[0]]}=...?" if close else ""
