"""Kunlun cards through the vendor's build of torch and its op libraries."""

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.nn.functional as F

from sglk.backends import (
    cpu_moe_ops,
    cpu_ops,
    kunlun_attention,
    kunlun_blocks,
    kunlun_products,
    moe_ops,
    reference,
    sampling_ops,
)
from sglk.backends.accelerator import TorchAccelerator, check_index
from sglk.backends.base import Capabilities, DeviceInfo
from sglk.backends.collectives import ProcessGroup
from sglk.backends.finding import Finding
from sglk.backends.kunlun_collectives import NAME as COLLECTIVES
from sglk.backends.kunlun_collectives import join_bkcl
from sglk.backends.kunlun_library import Adapter
from sglk.backends.kunlun_presence import (
    RUNTIME,
    driver_version,
    library_findings,
    missing,
    runtime_versions,
    start_runtime,
)
from sglk.backends.op_limits import declared_limits
from sglk.backends.ops import Denial, Fallback, OpRegistry
from sglk.config.schema import ChipConfig
from sglk.errors import BackendError, ConfigError

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

logger = logging.getLogger(__name__)

REHEARSE = "`sglk doctor chip=kunlun` lists all that is needed, backend=sim rehearses without a card"

VARIABLES = ("XMLIR_", "XPU_", "BKCL_", "CUDA_GRAPH_")
"""How the names of the libraries' own environment variables begin."""

CAPABILITIES = Capabilities(
    dtypes=frozenset({"bf16", "fp16"}),
    kv_cache_dtypes=frozenset({"bf16", "fp16"}),
    quantization=frozenset({"w8a8"}),
    page_sizes=(128,),
    default_dtype="bf16",
    head_major_pages=True,
    collectives=COLLECTIVES,
)
"""What the vendor's software declares, whichever card it is."""


class KunlunBackend(TorchAccelerator):
    """Card `index` of those that XPU_VISIBLE_DEVICES leaves; not verified on hardware.

    Ops that the vendor's libraries lack, or whose functions are not called as we know them, run as plain torch on the
    card; with the option `use_torch_fallback=false` they are an error. Which card it is, is the chip's file to say.
    """

    name = "kunlun"
    requires = {"python": ">=3.10", "glibc": ">=2.31", "driver": ">=5.0.21"}
    own_stream: ClassVar[bool] = False
    """The vendor's libraries work in the device's default context."""
    root: ClassVar[Path] = Path("/")
    """Where the machine's files are."""

    def __init__(
        self,
        *,
        index: int = 0,
        num_threads: int | None = None,
        fallback: Fallback = "warn",
        deny: Sequence[Denial] = (),
        chip: ChipConfig | None = None,
        use_torch_fallback: bool = True,
        **options: Any,
    ) -> None:
        if options:
            raise ConfigError(
                f"backend.options: the kunlun backend has no option {sorted(options)[0]!r}; it takes use_torch_fallback"
            )
        if not isinstance(use_torch_fallback, bool):
            raise ConfigError(f"backend.options.use_torch_fallback={use_torch_fallback!r}; choose true or false")
        self._start()
        check_index(self.name, index, self.num_devices(1))
        super().__init__(index)
        self._title = "Kunlun card" if chip is None else chip.title
        self.capabilities = capabilities_of(chip)
        self.ops = OpRegistry(fallback if use_torch_fallback else "forbid", deny)
        limits = declared_limits(chip)
        register_torch_ops(self.ops)
        for adapter in adapters():
            adapter.offer(self.ops, limits)

    def _start(self) -> None:
        """Raise BackendError where there is no card, or where its software does not load."""
        lacks = missing(root=self.root) or [why for why in (start_runtime(),) if why is not None]
        if lacks:
            raise BackendError(f"kunlun: not available ({'; '.join(lacks)}); {REHEARSE}")
        shown = [f"{name}={value}" for name, value in sorted(os.environ.items()) if name.startswith(VARIABLES)]
        logger.info("environment of the libraries: %s", " ".join(shown) or "nothing is set")

    @classmethod
    def installed_versions(cls) -> Mapping[str, str]:
        """Return the kernel driver's version and that of the runtime."""
        found = {"driver": driver_version(cls.root), "sdk": runtime_versions().get(RUNTIME)}
        return {name: version for name, version in found.items() if version is not None}

    @classmethod
    def diagnose(cls) -> Iterable[Finding]:
        """Yield which libraries are installed, and which ops they can do as sglk would call them."""
        findings = list(library_findings())
        yield from findings
        if any(finding.status == "fail" for finding in findings):
            return
        for _, offers in groupby(adapters(), key=lambda adapter: adapter.op.name):
            # Of two ways to call versions of one function, one is enough.
            tried = [adapter.finding() for adapter in offers]
            yield next((finding for finding in tried if finding.status == "ok"), tried[0])

    def process_group(self, store: "Store", rank: int, size: int, timeout: timedelta) -> ProcessGroup:
        """Join the ranks by BKCL; a rank that is gone is for its watchdog to notice."""
        self._module.set_device(self.device)
        return join_bkcl(store, rank, size, timeout)

    def device_info(self) -> DeviceInfo:
        """Return the chip's title, the driver, and the versions that the runtime tells."""
        versions = runtime_versions()
        sdk = ", ".join(f"{component} {version}" for component, version in versions.items())
        return DeviceInfo(self._title, driver_version(self.root), sdk or None, {"torch": torch.__version__})


def adapters() -> tuple[Adapter, ...]:
    """Return how every op is done that the vendor has functions for; of two for one op the later is preferred."""
    return (*kunlun_attention.adapters(), *kunlun_blocks.adapters(), *kunlun_products.adapters())


def register_torch_ops(ops: OpRegistry) -> None:
    """Offer what is the chip's own through torch: products, look-ups and choices, which the runtime compiles."""
    ops.register(reference.embedding, RUNTIME, cpu_ops.embedding)
    ops.register(reference.linear, RUNTIME, F.linear)
    ops.register(moe_ops.add_gated, RUNTIME, cpu_moe_ops.add_gated)
    ops.register(sampling_ops.greedy, RUNTIME, sampling_ops.greedy.reference)
    ops.register(sampling_ops.adjust_logits, RUNTIME, sampling_ops.adjust_logits.reference)
    ops.register(sampling_ops.mask_logits, RUNTIME, sampling_ops.mask_logits.reference)
    ops.register(sampling_ops.token_logprobs, RUNTIME, sampling_ops.token_logprobs.reference)


def capabilities_of(chip: ChipConfig | None) -> Capabilities:
    """Return what the software declares, as far as the chip's file does too; the file's first dtype is the default."""
    if chip is None:
        return CAPABILITIES
    dtypes = [name for name in chip.dtypes if name in CAPABILITIES.dtypes]
    if not dtypes:
        raise ConfigError(
            f"chip {chip.name!r} declares dtypes {', '.join(chip.dtypes) or 'none'}, of which the kunlun backend has "
            f"none; name one of {', '.join(sorted(CAPABILITIES.dtypes))} in its file"
        )
    return Capabilities(
        dtypes=frozenset(dtypes),
        kv_cache_dtypes=CAPABILITIES.kv_cache_dtypes & frozenset(chip.kv_cache_dtypes),
        quantization=CAPABILITIES.quantization,
        page_sizes=CAPABILITIES.page_sizes,
        default_dtype=dtypes[0],
        head_major_pages=True,
        collectives=COLLECTIVES,
    )
