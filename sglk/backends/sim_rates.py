"""How fast an imagined chip works: its own peak figures, and documented guesses of how near software comes to them."""

from collections.abc import Mapping
from dataclasses import dataclass

from sglk.backends.work import Work, allreduce_bytes
from sglk.config.schema import ChipConfig

BANDWIDTH_EFFICIENCY = 0.8
"""Assumed share of peak bandwidth that kernels reach; good ones copy at 80 to 90 % of it on most accelerators."""

COMPUTE_EFFICIENCY = 0.6
"""Assumed share of the peak rate that large matrix products reach."""

LAUNCH_US = 4.0
"""Assumed fixed time of one kernel on the device, in microseconds."""

LINK_EFFICIENCY = 0.7
"""Assumed share of the peak bandwidth between chips that collectives reach."""

HOP_US = 8.0
"""Assumed fixed time of one of the 2 (n - 1) hops of a ring, in microseconds."""

FALLBACK_KERNELS = 8
"""Assumed kernels of plain torch in place of one fused one, each with its own launch."""

FALLBACK_TRAFFIC = 4.0
"""Assumed growth of an op's time when its intermediate results go through device memory, many of them in fp32."""


@dataclass(frozen=True, slots=True)
class Efficiency:
    """What is assumed of the software; options of the sim backend."""

    bandwidth: float = BANDWIDTH_EFFICIENCY
    compute: float = COMPUTE_EFFICIENCY
    launch_us: float = LAUNCH_US


@dataclass(frozen=True, slots=True)
class Link:
    """Times between chips, in seconds."""

    bytes_per_s: float

    def allreduce_s(self, size: int, ranks: int) -> float:
        """Return the time to add up `size` bytes over a ring of `ranks` chips."""
        hops = 2 * (ranks - 1)
        return hops * HOP_US * 1e-6 + allreduce_bytes(size, ranks) / self.bytes_per_s

    def allgather_s(self, size: int, ranks: int) -> float:
        """Return the time after which each of `ranks` has all `size` bytes, of which it brings an equal part.

        It is the second half of a sum over a ring, in which each chip gets what the others have.
        """
        return self.allreduce_s(size, ranks) / 2


@dataclass(frozen=True, slots=True)
class Rates:
    """Times on one chip, in seconds."""

    bytes_per_s: float
    flops_per_s: Mapping[str, float]
    """By dtype."""
    link: Link
    launch_s: float

    def op_s(self, work: Work) -> float:
        """Return a launch and the longer of moving the bytes and calculating (Williams et al. 2009, the roofline)."""
        return self.launch_s + self._roofline_s(work)

    def flops_in(self, dtype: str) -> float:
        """Return the operations a second in `dtype`; one that the chip has no rate for runs at its slowest."""
        return self.flops_per_s.get(dtype) or min(self.flops_per_s.values())

    def fallback_s(self, work: Work) -> float:
        """Return the same where the reference stands in: more launches, more traffic."""
        return FALLBACK_KERNELS * self.launch_s + FALLBACK_TRAFFIC * self._roofline_s(work)

    def _roofline_s(self, work: Work) -> float:
        return max(work.bytes / self.bytes_per_s, work.flops / self.flops_in(work.dtype))


def multiplies_in_fp8(chip: ChipConfig) -> bool:
    """Return whether products of scheme `fp8` round the activations of a token too, in place of widening weights."""
    return "fp8" in chip.peak_tflops if chip.fp8_activations is None else chip.fp8_activations


def rates_of(chip: ChipConfig, efficiency: Efficiency) -> Rates:
    """Return the rates of `chip`, whose file lacks no figure: see `imagined`."""
    assert chip.bandwidth_gb_s is not None
    return Rates(
        bytes_per_s=chip.bandwidth_gb_s * 1e9 * efficiency.bandwidth,
        flops_per_s={dtype: tflops * 1e12 * efficiency.compute for dtype, tflops in _used_tflops(chip).items()},
        link=link_of(chip),
        launch_s=efficiency.launch_us * 1e-6,
    )


def link_of(chip: ChipConfig) -> Link:
    """Return the link of `chip`, whose file states one."""
    assert chip.interconnect_gb_s is not None
    return Link(chip.interconnect_gb_s * 1e9 * LINK_EFFICIENCY)


def _used_tflops(chip: ChipConfig) -> Mapping[str, float]:
    """Return the peak rates by the dtype that an op asks for: weights in fp8 may be multiplied in another."""
    wider = chip.peak_tflops.get(chip.dtypes[0]) if chip.dtypes else None
    return chip.peak_tflops if wider is None or multiplies_in_fp8(chip) else {**chip.peak_tflops, "fp8": wider}
