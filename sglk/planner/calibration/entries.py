"""Which deployment an entry of a calibration was measured with, and in what another one differs."""

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata

from sglk.backends.sim_rates import Link
from sglk.config.schema import ServeConfig
from sglk.config.tensor_parallel import ranks_of
from sglk.models.spec import ModelSpec
from sglk.planner.calibration.record import Entry, ServingRecord
from sglk.planner.cost.calibrated import CalibratedPrices
from sglk.planner.cost.exchanges import Links
from sglk.planner.cost.features import Features
from sglk.planner.cost.roofline import chip_link
from sglk.planner.dtypes import compute_dtype, kv_dtype
from sglk.planner.model import model_of

MOST_TIMES_AS_LARGE = 4.0
"""Layers that differ by more are other work: small products are bound by calls, large ones by arithmetic."""

COMPARED_VERSIONS = ("sglk", "torch")
"""Software that step times depend on, whatever the chip."""

_OF_NO_STEP = ("speed", "answer_tokens")
"""Options of a simulated device that its own clock knows nothing of."""

_UNSET = "null"

_LINK = "chip.interconnect_gb_s"
"""Where only one side has ranks that meet, it is no difference: what the others bring together has its own price."""

_SAME_BITS = 0.05
"""Scales and biases are another share of a model of other sizes."""

ON_THIS_MACHINE = "cpu"
"""Backend whose devices are the machine's own processor, which can be told apart without it running."""

_MEETING = {True: "gather", False: "sum", None: "sum or gather, which it does not say"}
"""What ranks do at the end of a block, by `gathers`."""


@dataclass(frozen=True)
class Way:
    """A model in one way to run it, as far as step times depend on it."""

    model: str
    numbers: dict[str, int]
    backend: str
    dtype: str
    kv_cache_dtype: str
    quantization: str | None
    tp_size: int
    num_threads: int | None
    gathers: bool
    """Whether ranks bring inputs together in place of sums; see `PlannedModel.gathers`."""
    weight_bits: float
    """That a number of its layers takes in memory, where a processor may keep those of the files."""
    settings: dict[str, str]
    """Words of the configuration that choose kernels, or say what the chip can do."""
    features: Features
    link: Link | None = None
    """What several chips of it would meet over; None = not stated."""

    @classmethod
    def of(cls, config: ServeConfig) -> "Way":
        """Return that of one replica; raises ConfigError or ModelLoadError where dtype or model is unknown."""
        model, runtime, chip = model_of(config), config.runtime, config.chip
        scheme = model.scheme(runtime.quantization)
        dtype, of_kv, ranks = compute_dtype(runtime, chip), kv_dtype(runtime, chip), ranks_of(runtime)
        gathers = model.gathers(scheme, ranks)
        return cls(
            model=config.model.name,
            numbers=numbers_of(model.spec),
            backend=chip.backend if config.backend.name == "auto" else config.backend.name,
            dtype=dtype,
            kv_cache_dtype=of_kv,
            quantization=scheme.kind if scheme else None,
            tp_size=ranks,
            num_threads=runtime.num_threads,
            gathers=gathers,
            weight_bits=model.weight_bits(dtype, scheme),
            settings=settings_of(config),
            features=Features.of(model.spec, dtype, of_kv, scheme, ranks, gathers=gathers, head=model.head(scheme)),
            link=chip_link(config),
        )

    def takes(self, entry: Entry) -> bool:
        """Return whether prices of `entry` say anything about this way: like products by the same kernels."""
        same = self.backend, self.dtype, self.quantization, self.num_threads
        kernels = same == (entry.backend, entry.dtype, entry.quantization, entry.num_threads)
        return kernels and self._meets_as(entry) and self.times_as_large(entry) <= MOST_TIMES_AS_LARGE

    def _meets_as(self, entry: Entry) -> bool:
        """Return whether one of our ranks is as fast as one of `entry`, and what they bring together has a time."""
        if self.tp_size == entry.tp_size:
            return True
        # Ranks in main memory share the processor's cores: each is the slower the more there are.
        return self.backend != ON_THIS_MACHINE and (not self.meets_unmeasured(entry) or self.link is not None)

    def meets_unmeasured(self, entry: Entry) -> bool:
        """Return whether ranks meet here, and did not where `entry` was measured."""
        return self.tp_size > entry.tp_size == 1

    def times_as_large(self, entry: Entry) -> float:
        """Return by which factor the weights of a layer differ from those of `entry`, whichever is larger."""
        ratio = _layer_size(self.numbers) / max(1, _layer_size(entry.numbers))
        return max(ratio, 1 / ratio)

    def differences(self, entry: Entry) -> Iterator[str]:
        """Yield why the prices of `entry` may not hold."""
        if self.numbers != entry.numbers:
            yield f"prices are those of model {entry.model!r}, carried over to {self.model!r} by its sizes"
        bits = self.weight_bits if entry.weight_bits is None else entry.weight_bits
        if abs(bits / self.weight_bits - 1) > _SAME_BITS:
            yield f"it was made with weights of {bits:g} bits in memory, and here they have {self.weight_bits:g}"
        apart = () if min(self.tp_size, entry.tp_size) > 1 else (_LINK,)
        yield from _other_settings(entry.settings, self.settings, apart)
        if self.kv_cache_dtype != entry.kv_cache_dtype:
            yield f"it was made with keys and values in {entry.kv_cache_dtype}, not {self.kv_cache_dtype}"
        if self.tp_size != entry.tp_size:
            peak = "; what ranks bring together is priced by the chip's link, never measured"
            meeting = peak if self.meets_unmeasured(entry) else ""
            yield f"it was made with runtime.tp_size={entry.tp_size}, not {self.tp_size}{meeting}"
        elif self.tp_size > 1 and self.gathers != entry.gathers:
            yield f"it was made where ranks {_MEETING[entry.gathers]}, and here they {_MEETING[self.gathers]}"
        if entry.serving is not None and not entry.serving.is_of_one_time:
            yield "what serving adds was measured in an older way; run `sglk calibrate` again"
        here = installed_versions()
        for name in COMPARED_VERSIONS:
            made, now = entry.versions.get(name), here.get(name)
            if made != now:
                yield f"it was made with {name} {made}, and here is {now}"


def settings_of(config: ServeConfig) -> dict[str, str]:
    """Return the words of `config` that step times depend on and no number of the model says."""
    backend, chip = config.backend, config.chip
    options = {name: value for name, value in backend.options.items() if name not in _OF_NO_STEP}
    figures = {"bandwidth_gb_s": chip.bandwidth_gb_s}
    figures |= {f"peak_tflops.{dtype}": rate for dtype, rate in chip.peak_tflops.items()}
    if ranks_of(config.runtime) > 1:
        figures[_LINK.removeprefix("chip.")] = chip.interconnect_gb_s
    found = {
        **{f"backend.options.{name}": value for name, value in options.items()},
        "backend.deny": ",".join(sorted(backend.deny)) or _UNSET,
        "runtime.disable_cuda_graph": config.runtime.disable_cuda_graph,
        "runtime.nan_guard": config.runtime.nan_guard,
        **{f"chip.{name}": rate for name, rate in figures.items()},
    }
    return {key: _typed(value) for key, value in found.items()}


def _typed(value: object) -> str:
    """Return a value as it is typed."""
    return f"{value:g}" if isinstance(value, float) else value if isinstance(value, str) else json.dumps(value)


def _other_settings(made: Mapping[str, str] | None, now: Mapping[str, str], apart: Collection[str]) -> Iterator[str]:
    if made is None:
        return
    for key in dict.fromkeys((*made, *now)):
        before, here = made.get(key, _UNSET), now.get(key, _UNSET)
        if before != here and key not in apart:
            unmoved = ", which measured prices do not follow" if key.startswith("chip.") else ""
            yield f"it was made with {key}={before}, not {here}{unmoved}"


def numbers_of(spec: ModelSpec) -> dict[str, int]:
    """Return what fixes the sizes of a model's steps."""
    moe = spec.moe
    experts = {} if moe is None else {"experts": moe.num_experts, "expert_size": moe.moe_intermediate_size}
    return experts | {
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.intermediate_size,
        "num_hidden_layers": spec.num_hidden_layers,
        "num_attention_heads": spec.num_attention_heads,
        "num_key_value_heads": spec.num_key_value_heads,
        "head_dim": spec.head_dim,
        "vocab_size": spec.vocab_size,
    }


def _layer_size(numbers: Mapping[str, int]) -> int:
    heads = 2 * (numbers["num_attention_heads"] + numbers["num_key_value_heads"]) * numbers["head_dim"]
    experts = numbers.get("experts", 1)
    width = numbers["expert_size"] if "expert_size" in numbers else numbers["intermediate_size"]
    return numbers["hidden_size"] * (heads + 3 * experts * width)


def installed_versions() -> dict[str, str]:
    """Return the versions that step times depend on, without importing anything."""
    distributions = {name: metadata.distributions(name=name) for name in COMPARED_VERSIONS}
    return {name: each.version for name, found in distributions.items() for each in found}


def prices_of(entry: Entry, way: Way) -> CalibratedPrices:
    """Return the prices of `entry` for the steps of `way`."""
    fitted, serving = entry.fit(), entry.serving or ServingRecord()
    links = Links(way.link, way.tp_size) if way.link is not None and way.meets_unmeasured(entry) else None
    return CalibratedPrices(fitted.features(way.features), fitted.prices, serving.host, links)
