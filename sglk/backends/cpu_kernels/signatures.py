"""What the C functions take, and the C source that calls each from a line of words."""

import ctypes
from typing import Any

LETTERS: dict[str, Any] = {"p": ctypes.c_void_p, "n": ctypes.c_size_t, "i": ctypes.c_int, "f": ctypes.c_float}
WORD = {"p": "pointer", "n": "size", "i": "number", "f": "real"}
"""Member of `union word` (words.h) that holds an argument of each letter."""

SIGNATURES = {
    name: signature.replace(" ", "")
    for name, signature in {
        "product": "ip ippp f nnn ppn pn p p p i",
        "rows": "ip ipp nnn pn p",
        "int8_product": "pp nnn pn p p pp i",
        "int8_dots": "pp nnn pn p p pp p i",
        "rms_norm": "pnn p f nnn p i",
        "add_rms_norm": "pp p f nn p i",
        "rope": "pnn pp nnn p i",
        "silu_and_mul": "pn nn p i",
        "add_gated": "ppp nn p i",
        "weighted_sum": "ppp nnn p i",
        "store_kv": "i pnpn pppp p nnn",
        "attention_decode": "i pn pppp pnn p nn nnn f p pn p i",
        "attention_prefill": "i pn pppp pnn pp nn nnn f p pn p i",
        "sample": "pnnn ppppp p p i",
        "greedy": "pnnn pp i",
    }.items()
}
"""Of each function `sglk_*` that returns nothing: p = pointer, n = size_t, i = int, f = float."""


def adapters() -> str:
    """Return the C source of a `sglk_run_*` for each function: it takes the arguments from words, one a word."""
    return "\n".join(['#include "words.h"', "", *map(_adapter, SIGNATURES)])


def adapter(name: str) -> str:
    """Return the name of the C function that takes the arguments of `sglk_{name}` as words."""
    return f"sglk_run_{name}"


def _adapter(name: str) -> str:
    kinds = ", ".join({"p": "const void *", "n": "size_t", "i": "int", "f": "float"}[each] for each in SIGNATURES[name])
    taken = ", ".join(f"{'(int)' if each == 'i' else ''}w[{i}].{WORD[each]}" for i, each in enumerate(SIGNATURES[name]))
    # Weak, as not every processor has every function.
    return (
        f"__attribute__((weak)) void sglk_{name}({kinds});\n"
        f"void {adapter(name)}(const union word *w) {{ sglk_{name}({taken}); }}\n"
    )
