"""Which ops a deployment's model calls in a decode step and in a prefill, at which shapes: found without weights.

The model is built on torch's meta device and run by the engine's own runner.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from sglk.backends.base import DeviceBackend
from sglk.backends.dtypes import compute_dtype
from sglk.backends.ops import Choice
from sglk.config.ops_schema import OpsConfig
from sglk.config.tensor_parallel import ranks_of
from sglk.engine.batch import Batch, BatchRow
from sglk.engine.messages import SamplingParams
from sglk.engine.runner import ModelRunner
from sglk.errors import ConfigError
from sglk.models.causal_lm import CausalLM
from sglk.models.chosen_scheme import choose_scheme
from sglk.models.description import ModelDescription, describe_model
from sglk.models.loader import open_weights
from sglk.models.quantization import check_scheme, quantization_of
from sglk.models.registry import model_class
from sglk.models.shapes_only import ShapesOnly
from sglk.models.spec import ModelSpec
from sglk.models.split import RankPart
from sglk.operators.calling import tensors_in
from sglk.operators.cases import OpCase
from sglk.operators.tracing import Call, TracingBackend
from sglk.parallel.ranks import ALONE, Ranks

SAMPLING = SamplingParams(temperature=0.8, top_p=0.95)
"""What the rows of a traced step ask for."""

ON_REQUEST = ("adjust_logits", "mask_logits", "token_logprobs")
"""Ops that run only where a request asks for penalties, a grammar or logprobs."""

USUAL_LENGTH = 1024
"""Tokens of a request, and of a prompt, where nobody says."""

LOGPROBS = 5
"""How many likeliest tokens are taken to be asked for."""


@dataclass
class ModelOp:
    """One op at one shape, and how often a model calls it."""

    case: OpCase
    call: Call | None
    """A call of it; None where only a request makes the model call it."""
    decode_calls: int = 0
    """In one decode step."""
    prefill_calls: int = 0
    """In the prefill of one prompt, all its chunks together."""

    @property
    def argument_bytes(self) -> int:
        """Memory that the arguments of a call take, in bytes; what only a request asks for takes next to nothing."""
        if self.call is None:
            return 0
        # Rows of a traced step share their pages, those of a real one do not, and their work says what they read.
        return max(sum(tensor.nbytes for tensor in tensors_in(self.call.arguments)), int(self.call.work.bytes))


@dataclass(frozen=True)
class ModelOps:
    """All ops of a model on one device."""

    ops: list[ModelOp]
    """By shape, in the order of their first call."""
    classes: list[Choice]
    """Every shape class that the model's layers and the sampler selected, in order of op and class."""


def model_ops(config: OpsConfig, backend: DeviceBackend, where: str) -> ModelOps:
    """Return what the model of `config` would call on `backend`, which `where` names in messages.

    Raises ModelLoadError where the model's architecture is not known, ConfigError where the device lacks what the
    deployment asks for or the context is beyond the model's.
    """
    config = with_lengths(config)
    tracing = TracingBackend(backend.capabilities, config.ops.seed)
    runtime = replace(config.runtime, nan_guard=False)
    model = build_model(config, tracing, where)
    runner = ModelRunner(model, tracing, runtime)
    found: dict[str, ModelOp] = {}
    for call in _run(runner, tracing, [decode_batch(config)], config):
        _entry(found, call).decode_calls += 1
    for call in _run(runner, tracing, list(prefill_batches(config)), config):
        _entry(found, call).prefill_calls += 1
    classes = tracing.ops.choices()
    for choice in classes:
        if choice.op in ON_REQUEST:
            case = _on_request(choice, config)
            found.setdefault(str(case), ModelOp(case, None))
    return ModelOps(list(found.values()), classes)


def build_model(config: OpsConfig, backend: TracingBackend, where: str) -> CausalLM:
    """Return one rank's part of the model, its weights without content."""
    runtime = config.runtime
    dtype = compute_dtype(runtime.dtype, backend.capabilities, where)
    spec = _spec(config, backend, where)
    ranks = ALONE if ranks_of(runtime) == 1 else _FirstOf(ranks_of(runtime), runtime.enable_deterministic_inference)
    part = RankPart(spec, ranks, config.model.name)
    model = model_class(spec.architecture)(part.spec, backend, dtype, ranks)
    model.load_weights(ShapesOnly(model.context.weights))
    return model


def _on_request(choice: Choice, config: OpsConfig) -> OpCase:
    counts = {"count": LOGPROBS} if choice.op == "token_logprobs" else {}
    return OpCase(choice.op, {"tokens": config.ops.batch, **counts, **dict(choice.traits)}, config.ops.seed)


class _FirstOf(Ranks):
    """The first of several ranks, which has no others to meet."""

    def __init__(self, size: int, deterministic: bool | None) -> None:
        self.size, self.deterministic = size, deterministic

    def gather(self, x_NE: torch.Tensor, width: int) -> torch.Tensor:
        """Return lines without content."""
        return x_NE.new_empty(len(x_NE), width)


def _spec(config: OpsConfig, backend: TracingBackend, where: str) -> ModelSpec:
    """Return the model's numbers, with the quantisation of every layer."""
    runtime, name = config.runtime, f"model {config.model.name!r}"
    description = describe_model(config.model, "dummy")
    scheme = choose_scheme(runtime.quantization, description.quantization, name)
    if scheme is None:
        return description.spec
    check_scheme(scheme.kind, backend, where)
    source = open_weights(_with_files(config, description))
    spec = description.spec
    return replace(spec, quantization=quantization_of(source, scheme, spec, backend.capabilities))


def _with_files(config: OpsConfig, description: ModelDescription) -> ModelDescription:
    """A checkpoint that is quantised says layer by layer how, which takes a look into its files."""
    if description.quantization is None or config.runtime.load_format == "dummy":
        return description
    return describe_model(config.model, config.runtime.load_format)


def with_lengths(config: OpsConfig) -> OpsConfig:
    """Return `config` with the lengths that are left to the model; raises ConfigError for one beyond its window."""
    most = describe_model(config.model, "dummy").spec.max_position_embeddings
    usual = min(USUAL_LENGTH, config.runtime.context_length or most, most)
    ops = replace(config.ops, context=config.ops.context or usual, prompt=config.ops.prompt or usual)
    for name in ("context", "prompt"):
        if (tokens := getattr(ops, name)) > most:
            raise ConfigError(
                f"ops.{name}={tokens} is beyond the context length of model {config.model.name!r}; write at most {most}"
            )
    return replace(config, ops=ops)


def decode_batch(config: OpsConfig) -> Batch:
    """Return one decode step."""
    context, _ = _lengths(config)
    pages = _pages(context, config.runtime.page_size)
    return Batch([_row(1, context - 1, pages, samples=True) for _ in range(config.ops.batch)], 0)


def prefill_batches(config: OpsConfig) -> Iterator[Batch]:
    """Yield the steps that compute one prompt."""
    (_, prompt), runtime = _lengths(config), config.runtime
    chunk = prompt if runtime.chunked_prefill_size == -1 else runtime.chunked_prefill_size
    chunk = min(chunk, runtime.max_prefill_tokens)
    pages = _pages(prompt, runtime.page_size)
    for start in range(0, prompt, chunk):
        tokens = min(chunk, prompt - start)
        yield Batch([_row(tokens, start, pages, samples=start + tokens == prompt)], 1)


def _lengths(config: OpsConfig) -> tuple[int, int]:
    context, prompt = config.ops.context, config.ops.prompt
    assert context is not None, "a length that is left to the model"
    assert prompt is not None, "a length that is left to the model"
    return context, prompt


def _pages(tokens: int, page_size: int) -> range:
    """Return pages for so many tokens; rows may share them, since nothing is stored."""
    return range(-(-tokens // page_size))


def _row(tokens: int, start: int, pages: range, *, samples: bool) -> BatchRow:
    return BatchRow(
        "traced", [0] * tokens, start, pages, SAMPLING, seed=0, num_generated=1 if tokens == 1 else 0, samples=samples
    )


def _run(runner: ModelRunner, tracing: TracingBackend, batches: list[Batch], config: OpsConfig) -> list[Call]:
    page_size = config.runtime.page_size
    runner.allocate_kv(len(_pages(max(_lengths(config)), page_size)), page_size)
    tracing.trace.calls.clear()
    for batch in batches:
        runner.run(batch)
    return list(tracing.trace.calls)


def _entry(found: dict[str, ModelOp], call: Call) -> ModelOp:
    return found.setdefault(str(call.case), ModelOp(call.case, call))
