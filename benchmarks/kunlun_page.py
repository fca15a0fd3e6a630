"""docs/kunlun-study.md, out of the result of a run."""

from collections.abc import Iterator
from typing import Any

Figures = dict[str, float]
Table = dict[str, Figures]

_INTRO = """\
# Kunlun cards and GPUs, simulated

A team that serves long prompts on 32 GB Kunlun cards beside GPUs reported a few figures. This page asks what the
simulator makes of them, from the chips' peak figures alone: nothing here was measured on a card, no calibration was
used, and nothing was fitted to what was reported. Qwen2.5-32B in w8a8 on two devices of each chip; in bf16 its weights
(61 GiB) leave two 32 GB cards no room.
"""

_SETTINGS = """\
Reported: with the GPU's settings long prompts were 40 % slower than on the GPU, after tuning 15 %.

Simulated, 8192 tokens in, 256 out, 16 requests at a time: with the GPU's settings the card makes {to_a100:.0%} of the
output of two A100 40 GB, and {to_l20:.0%} of that of two L20. Tuned, so that 99 of 100 gaps between tokens stay below a
second, it is {tuned:+.1%} against itself and {tuned_l20:.0%} of the L20.

Does not agree. The distance between the chips is that of their peak figures, so it depends on the GPU: in int8 the
A100 calculates 2.4 times and reads 3 times as fast as the card, the L20 calculates as fast, reads 1.7 times as fast and
exchanges a third as fast (in w8a8 two devices bring together what a product takes in, since a token has one scale). And
settings move throughput little, because a roofline knows no kernel that is slow at one size and fast at another, no
intermediate results that do not fit, and no page that is laid out badly; it gives every size the same share of the
peak. What the reported tuning won lies in there, and only `sglk calibrate` or `sglk tune` on the card can see it. What
the simulation does show: the KV pool decides how many long prompts run at a time (a memory fraction of 0.75 in place of
0.8 costs {fraction:.0%} of the output), and the longest gaps shrink with the chunk.
"""

_WINDOW = """\
Reported: 64 running requests in place of 32 gave 8 % more throughput for 15 % more memory.

Simulated, 96 requests at a time: with prompts of 512 tokens {short_rate:+.0%} throughput for {short_memory:+.0%} memory
in use on each card (weights and the keys and values of live requests); with prompts of 4096 {long_rate:+.0%} and
{long_memory:+.0%}.

The memory agrees for short prompts. The throughput lies between the two loads: decoding reads all weights for every
step, so with short prompts twice the rows nearly halve the steps; with long ones the KV pool is full before 32 requests
run, and the window changes nothing. A load between them gives any figure in between, 8 % among them, so this one does
not test the simulator.
"""

_CHUNK = """\
Reported: GPUs like chunks of 8192, on the card 2048 to 4096 were tried and 3072 was kept.

Simulated: from 8192 to 2048 throughput changes by {rate:+.1%}, and the longest gaps (ITL p99) fall from {longest:.2f} s
to {shortest:.2f} s.

Agrees in kind: the card calculates slowly, so a chunk of 8192 keeps everybody else waiting for about two seconds, and
half of that on an A100. Where to stop is a choice between latency and throughput; the limit of one second that is used
above allows 3072 and not 4096. That large chunks are slower on the card is not seen, for the reason given above.
"""

_RADIX = """\
Reported: a minimum prefix of 64 or 128 tokens keeps short ones out of the cache, and fragmentation falls.

Simulated, conversations of four turns with system prompts of 64 tokens, in a pool of 24,576 tokens: up to 128 the hit
rate stays at {base:.0%}, for no conversation is shorter than that when its next turn comes; from 256 on it falls, and
with it throughput.

Agrees as far as it goes: 64 and 128 cost nothing. What they are said to win is not seen, as pages here are found in
runs, whatever is beside them, and no kernel is slowed by scattered ones. On the card pages hold 128 tokens, and shorter
prefixes are never kept anyway.
"""

_SECTIONS = (
    ("The GPU's settings on the card", ("GPU settings", "tuned"), _SETTINGS),
    ("Twice the window", ("window, prompts of 512", "window, prompts of 4096"), _WINDOW),
    ("Chunks", ("chunk",), _CHUNK),
    ("Shortest prefix that is kept", ("radix_min_len",), _RADIX),
)
_COLUMNS = ("output tokens/s", "TTFT p50", "TPOT p50", "ITL p99", "GiB a device in use", "retractions", "hit rate")


def page(result: dict[str, Any]) -> str:
    """Return the page."""
    table = _table(result["rows"])
    facts = f"{result['date'][:10]}, sglk {result['versions']['sglk']}\n\n```sh\n{result['command']}\n```\n"
    values = _values(table)
    lines = [_INTRO, facts]
    for title, names, text in _SECTIONS:
        lines += [f"## {title}\n", text.format(**values), *_rows(table, names), ""]
    return "\n".join(lines)


def _table(rows: list[dict[str, Any]]) -> dict[str, Table]:
    found: dict[str, Table] = {}
    for row in rows:
        section, case, metric = row["metric"].split(" | ")
        found.setdefault(section, {}).setdefault(case, {})[metric] = row["value"]
    return found


def _values(table: dict[str, Table]) -> dict[str, float]:
    gpu, (tuned,) = table["GPU settings"], table["tuned"].values()
    rate = "output tokens/s"
    short, long = table["window, prompts of 512"], table["window, prompts of 4096"]
    chunks, radix = table["chunk"], table["radix_min_len"]
    return {
        "to_a100": gpu["kunlun"][rate] / gpu["a100_40g"][rate],
        "to_l20": gpu["kunlun"][rate] / gpu["l20"][rate],
        "tuned": tuned[rate] / gpu["kunlun"][rate] - 1,
        "tuned_l20": tuned[rate] / gpu["l20"][rate],
        "fraction": 1 - chunks["8192"][rate] / gpu["kunlun"][rate],
        "short_rate": _growth(short, rate),
        "short_memory": _growth(short, "GiB a device in use"),
        "long_rate": _growth(long, rate),
        "long_memory": _growth(long, "GiB a device in use"),
        "rate": chunks["2048"][rate] / chunks["8192"][rate] - 1,
        "longest": chunks["8192"]["ITL p99"],
        "shortest": chunks["2048"]["ITL p99"],
        "base": radix["0"]["hit rate"],
    }


def _growth(windows: Table, metric: str) -> float:
    return windows["64"][metric] / windows["32"][metric] - 1


def _rows(table: dict[str, Table], names: tuple[str, ...]) -> Iterator[str]:
    yield "| | " + " | ".join(_COLUMNS) + " |"
    yield "|---" * (1 + len(_COLUMNS)) + "|"
    for name in names:
        for case, figures in table[name].items():
            yield f"| {name}: {case} | " + " | ".join(_cell(column, figures[column]) for column in _COLUMNS) + " |"


def _cell(column: str, value: float) -> str:
    if column == "hit rate":
        return f"{value:.1%}"
    if column.startswith(("TTFT", "TPOT", "ITL")):
        return f"{value * 1000:,.0f} ms"
    return f"{value:.1f}" if column != "retractions" else f"{value:g}"
