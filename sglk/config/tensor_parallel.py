"""Over how many devices a model is split, and over how many it can be. Needs no torch."""

from dataclasses import dataclass

from sglk.config.schema import RuntimeConfig


def ranks_of(runtime: RuntimeConfig) -> int:
    """Return how many devices share one replica; one where nobody has said or chosen a number."""
    return 1 if runtime.tp_size is None else runtime.tp_size


@dataclass(frozen=True, slots=True)
class SplitSizes:
    """What tensor parallelism divides between its ranks."""

    heads: int
    kv_heads: int
    widths: frozenset[int] = frozenset()
    """Inner widths of the feed-forward blocks."""
    vocabulary: int | None = None
    """Rows of embedding and head; None where every rank has all."""
    block: int = 1
    """Neighbours of an inner width, or of the outputs for heads, that share scales: no rank has a part of them."""
    head_widths: frozenset[int] = frozenset()
    """Outputs that a head has of each projection, where blocks are to stay whole."""
    kv_width: int = 0
    """Those of a key-value head; 0 where they may be cut."""

    def fits(self, tp_size: int) -> bool:
        """Return whether each of `tp_size` ranks can have whole query heads and an equal part of every width.

        Fewer key-value heads than ranks are copied, so that those of one rank's query heads are always beside them.
        """
        return (
            self.heads % tp_size == 0
            and (self.kv_heads % tp_size == 0 or tp_size % self.kv_heads == 0)
            and all(width % (tp_size * self._block(tp_size)) == 0 for width in self.widths)
            and (self.vocabulary is None or self.vocabulary % tp_size == 0)
            and self._keeps_blocks_of_heads(tp_size)
        )

    def _keeps_blocks_of_heads(self, tp_size: int) -> bool:
        block, heads, kv_heads = self._block(tp_size), self.heads // tp_size, max(1, self.kv_heads // tp_size)
        return all(heads * width % block == 0 for width in self.head_widths) and kv_heads * self.kv_width % block == 0

    def _block(self, tp_size: int) -> int:
        return self.block if tp_size > 1 else 1

    def allowed(self) -> list[int]:
        """Return every number of ranks that fits."""
        return [tp_size for tp_size in range(1, self.heads + 1) if self.fits(tp_size)]

    def problem(self, tp_size: int, model: str) -> str | None:
        """Return what is wrong with splitting `model` over `tp_size` ranks, None when it can be split."""
        if self.fits(tp_size):
            return None
        widths = "".join(f", feed-forward width {width}" for width in sorted(self.widths))
        blocks = f" and in whole blocks of {self.block}" if self.block > 1 else ""
        vocabulary = "" if self.vocabulary is None else f", vocabulary of {self.vocabulary}"
        return (
            f"runtime.tp_size={tp_size} does not split the {self.heads} attention heads, {self.kv_heads} key-value"
            f" heads{widths}{vocabulary} of {model!r} evenly{blocks}; allowed: {', '.join(map(str, self.allowed()))}"
        )
