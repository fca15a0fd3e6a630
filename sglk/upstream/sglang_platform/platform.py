"""What SGLang asks of a platform that it does not know."""

from typing import Any

from sglang.srt.platforms.cpu import CpuSRTPlatform
from sglang.srt.platforms.device_mixin import PlatformEnum

from sglk.upstream.sglang_platform import NAME


class SglkCpuPlatform(CpuSRTPlatform):  # type: ignore[misc]
    """The machine's processor, for which SGLang's own platform asks for AVX-512 or AMX; this one does not."""

    _enum = PlatformEnum.OOT
    device_name = NAME

    def apply_server_args_defaults(self, server_args: Any) -> None:
        """Choose sglk's attention where SGLang has chosen by itself what only AMX runs."""
        if server_args.attention_backend in (None, "intel_amx"):
            server_args.attention_backend = NAME

    def get_default_attention_backend(self) -> str:
        """Name the attention over sglk's ops."""
        return NAME

    def get_mha_kv_pool_cls(self) -> type:
        """Return a pool of [slots, heads, head_dim] a layer, which is the layout of sglk's ops too."""
        from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

        pool: type = MHATokenToKVPool
        return pool

    def get_paged_allocator_cls(self) -> type:
        """Return an allocator of pages that needs no Triton."""
        from sglk.upstream.sglang_platform.pages import SglkPages

        return SglkPages

    def get_dispatch_key_name(self) -> str:
        """Let fused ops run as plain torch."""
        return "native"
