"""`python -m benchmarks.null_server WORDS`: `sglk serve` of a model whose every step is done at once, for `http_front`.

All is as `sglk serve` has it, tokenizer, scheduler, cache, router and HTTP included. Only the runner is null: it knows
each row's next token without computing anything.
"""

import sys
from collections.abc import Callable, Mapping, Sequence

from sglk.config.compose import compose
from sglk.config.fleet import ReplicaConfig, alone
from sglk.config.schema import RuntimeConfig
from sglk.engine.batch import Batch, RowFailure, RowResult
from sglk.engine.engine import Engine
from sglk.engine.op_report import OpReport
from sglk.models.description import describe_model
from sglk.models.tokenizer import Tokenizer
from sglk.server.serve import serve

TEXT = "There was a river that knew every village on its way to the sea, and she told nobody. "
KV_TOKENS = 1_000_000


class NullRunner:
    """Implements `Runner`: a row's tokens are those of TEXT, over and over."""

    context_length = 8192
    eos_token_ids: frozenset[int] = frozenset()
    weights_bytes = 0
    dtype = kv_cache_dtype = "fp32"
    quantization: str | None = None
    asynchronous = False
    device_info: Mapping[str, str] = {"name": "null", "simulated": "true"}

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self._tokens = tokenizer.encode(TEXT)

    def kv_capacity_tokens(self, runtime: RuntimeConfig) -> int:
        return KV_TOKENS

    def allocate_kv(self, num_pages: int, page_size: int) -> None:
        pass

    def launch(self, batch: Batch) -> Callable[[], Sequence[RowResult | None]]:
        return lambda: self.run(batch)

    def run(self, batch: Batch) -> Sequence[RowResult | None]:
        tokens = self._tokens
        return [tokens[row.num_generated % len(tokens)] if row.samples else None for row in batch.rows]

    def diagnose(self, batch: Batch, rows: Sequence[int]) -> Sequence[RowFailure]:
        raise AssertionError("no row fails")

    def op_report(self) -> OpReport:
        return OpReport()

    def peak_memory_bytes(self) -> int:
        return 0

    def watch(self, on_lost: Callable[[str], None]) -> None:
        pass

    def close(self) -> None:
        pass


def launch(replica: ReplicaConfig) -> Engine:
    """Start the engine of a replica over a null runner."""
    description = describe_model(replica.config.model, "dummy")
    tokenizer = description.tokenizer
    runner = NullRunner(tokenizer, description.spec.vocab_size)
    engine = Engine(runner, tokenizer, replica.config.runtime, name=replica.name)
    engine.start()
    return engine


if __name__ == "__main__":
    composed = compose("serve", sys.argv[1:])
    serve(composed.config, None, alone(composed.config), launch)
