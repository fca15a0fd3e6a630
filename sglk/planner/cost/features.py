"""What a step is made of in physical quantities, each of which a calibration puts a price on.

Most of a step's time grows with its tokens, but not in proportion: a product with few tokens is as fast as its weights
are read, and kernels change with the size. So tokens are counted in stretches (the first, the second, the third and
fourth, the next four, ...), each with a price of its own: a rising line with bends. All quantities are operations,
bytes or calls, so that prices carry over to a model of other sizes. Kernels that take rows in tiles make stairs of the
small counts; where each of them has been measured the line may bend at each.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from sglk.backends.schemes import LinearScheme
from sglk.models.spec import ModelSpec
from sglk.planner.cost.attention import AttentionOp, Seen, attention_op, decode_seen, prefill_seen, windows_of
from sglk.planner.cost.exchanges import Exchanged
from sglk.planner.cost.ops import OpLine, Part, StepOps, step_ops
from sglk.planner.cost.shape import StepShape

KNOTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
"""Tokens at which the line may bend."""

EVERY = (*range(1, 16), *(knot for knot in KNOTS if knot >= 16))
STRAIGHT = (1,)
COARSE = (1, 4, 16, 64, 256, 1024, 4096)
LINE_KNOTS = (1, 4, 16, 64)
"""Lines of logits at which theirs may."""
EVERY_LINE = (*range(1, 16), 16, 64)

PART_OF: dict[str, Part] = {
    "layers": "layers",
    "prefill_layers": "layers",
    "weight_bytes": "linear",
    "tokens": "linear",
    "lines": "linear",
    "expert_bytes": "moe",
    "expert_tokens": "moe",
    "sampling_bytes": "sampling",
    "drawn_rows": "sampling",
    "drawing_bytes": "sampling",
    "sum_bytes": "collectives",
    "prefill_rows": "attention_prefill",
    "prefill_pairs": "attention_prefill",
    "prefill_masked": "attention_prefill",
    "prefill_bytes": "attention_prefill",
    "decode_rows": "attention_decode",
    "decode_bytes": "attention_decode",
    "decode_distinct": "attention_decode",
    "decode_padded": "attention_decode",
}
"""By the name of a quantity, without its stretch."""

Quantities = dict[str, float]


@dataclass(frozen=True)
class Features:
    """The quantities of one model's steps on one rank."""

    ops: StepOps
    attention: AttentionOp
    windows: Mapping[int | None, int]
    knots: tuple[int, ...]
    """Where the line over tokens may bend."""
    line_knots: tuple[int, ...] = LINE_KNOTS
    """Where that over lines of logits may."""

    @classmethod
    def of(
        cls,
        spec: ModelSpec,
        dtype: str,
        kv_dtype: str,
        scheme: LinearScheme | None,
        ranks: int,
        knots: tuple[int, ...] = KNOTS,
        gathers: bool = False,
        head: LinearScheme | None = None,
    ) -> "Features":
        """Return the quantities of a model on one of `ranks`; stretches of tokens begin at `knots`."""
        ops = step_ops(spec, dtype, kv_dtype, scheme, ranks, gathers, head)
        return cls(ops, attention_op(spec, dtype, kv_dtype, ranks), windows_of(spec), knots)

    def quantities(self, shape: StepShape) -> Quantities:
        """Return all quantities of a step that are not 0."""
        found = self.of_tokens(shape.tokens)
        for name, value in self.of_lines(shape.logits).items():
            found[name] = found.get(name, 0.0) + value
        found |= self.of_drawn(shape.drawn)
        found |= self.of_prefills(shape)
        found |= self.of_decodes(shape)
        return {name: value for name, value in found.items() if value}

    def of_tokens(self, tokens: int) -> Quantities:
        """Return what depends on the step's tokens alone."""
        linear = [(line, calls) for line, calls in self.ops.trunk.items() if line.part != "moe"]
        experts = [(line, calls) for line, calls in self.ops.trunk.items() if line.part == "moe"]
        found: Quantities = {
            "layers": float(sum(self.windows.values())),
            "weight_bytes": _total(linear, "fixed", "bytes"),
            "sum_bytes": tokens * sum(calls * _summed_bytes(each) for each, calls in self.ops.exchanges.items()),
        }
        found |= stretches("tokens", tokens, self.knots, _total(linear, "each", "flops"))
        if experts:
            found["expert_tokens"] = tokens * _total(experts, "each", "flops")
            found["expert_bytes"] = sum(
                calls * (line.at(tokens).bytes - tokens * line.each.bytes) for line, calls in experts
            )
        return found

    def of_lines(self, lines: int) -> Quantities:
        """Return what depends on the lines of logits alone."""
        if not lines:
            return {}
        products = [(line, calls) for line, calls in self.ops.head.items() if line.part == "linear"]
        others = [(line, calls) for line, calls in self.ops.head.items() if line.part != "linear"]
        found = {
            "weight_bytes": _total(products, "fixed", "bytes"),
            "sampling_bytes": lines * _total(others, "each", "bytes"),
        }
        return found | stretches("lines", lines, self.line_knots, _total(products, "each", "flops"))

    def of_drawn(self, rows: int) -> Quantities:
        """Return what depends on the rows whose token chance decides."""
        each = _total(list(self.ops.drawing.items()), "each", "bytes")
        return {"drawn_rows": float(rows > 0), "drawing_bytes": rows * each} if rows else {}

    def of_prefills(self, shape: StepShape) -> Quantities:
        """Return what the attention of prompt chunks does, in all layers.

        A chunk behind computed tokens counts all pairs under `prefill_masked`: kernels that take a mask compute them.
        `prefill_layers` is there since a step with prompt chunks is handed to the device call by call, where one that
        only decodes may be recorded and handed over as a whole.
        """
        if not shape.prefills:
            return {}
        whole = StepShape(prefills=tuple(row for row in shape.prefills if row[0] == row[1]))
        masked = [row for row in shape.prefills if row[0] != row[1]]
        found: defaultdict[str, float] = defaultdict(float)
        for window, layers in self.windows.items():
            seen = prefill_seen(whole, window)
            every = prefill_seen(shape, window)
            width = window or max(context for _, context in shape.prefills)
            pairs = sum(new * min(context, width + new - 1) for new, context in masked)
            found["prefill_rows"] += layers * len(shape.prefills)
            found["prefill_pairs"] += layers * seen.pairs * self.attention.pair_flops
            found["prefill_masked"] += layers * pairs * self.attention.pair_flops
            found["prefill_bytes"] += layers * _moved(every, self.attention)
        found["prefill_layers"] = float(sum(self.windows.values()))
        return dict(found)

    def of_decodes(self, shape: StepShape) -> Quantities:
        """Return what the attention of decoding rows does, in all layers.

        Padded = every row as long as the longest; distinct = what rows share counted once, for only the first of them
        has to fetch it from far away.
        """
        rows = len(shape.decodes)
        if not rows:
            return {}
        longest = max(shape.decodes)
        bytes_ = distinct = padded = 0.0
        for window, layers in self.windows.items():
            seen = decode_seen(shape, window).tokens
            # What they share comes first, and leaves a window first.
            shared = max(0, shape.shared - (sum(shape.decodes) - seen))
            bytes_ += layers * seen * self.attention.token_bytes
            distinct += layers * (seen - shared) * self.attention.token_bytes
            padded += layers * rows * min(longest, window or longest) * self.attention.token_bytes
        layers = sum(self.windows.values())
        return {
            "decode_rows": float(layers * rows),
            "decode_bytes": bytes_,
            "decode_distinct": distinct,
            "decode_padded": padded,
        }


def stretches(name: str, count: int, knots: tuple[int, ...], scale: float) -> Quantities:
    """Return how much of `count` lies in each stretch between knots, times `scale`; what is below the first is free."""
    ends = (*knots[1:], max(count, knots[-1]))
    return {
        f"{name}_{begin}": (min(count, end) - begin) * scale
        for begin, end in zip(knots, ends, strict=True)
        if count > begin
    }


def is_quantity(name: str) -> bool:
    """Return whether there is such a quantity, or a stretch of it."""
    whole, _, begin = name.rpartition("_")
    return name in PART_OF or (begin.isdecimal() and whole in PART_OF)


def part_of(quantity: str) -> Part:
    """Return the part of a step that a quantity belongs to."""
    return PART_OF.get(quantity) or PART_OF[quantity.rpartition("_")[0]]


def _summed_bytes(exchanged: Exchanged) -> float:
    """Return the bytes of the sum that takes as long: gathering is the second half of one."""
    return exchanged.token_bytes / (2 if exchanged.gathered else 1)


def _moved(seen: Seen, attention: AttentionOp) -> float:
    return seen.tokens * attention.token_bytes


def _total(lines: list[tuple[OpLine, int]], which: str, what: str) -> float:
    return float(sum(calls * getattr(getattr(line, which), what) for line, calls in lines))
