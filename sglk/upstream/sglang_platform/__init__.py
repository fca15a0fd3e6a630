"""A platform plugin for SGLang: its own engine and scheduler, on a CPU, over the attention of sglk's cpu backend.

SGLang finds it by the entry points `sglang.srt.platforms` and `sglang.srt.plugins`; `SGLANG_PLATFORM=sglk_cpu` chooses
it. Nothing of SGLang is imported before SGLang itself asks, and nothing of torch before it is chosen.
"""

import os

NAME = "sglk_cpu"
"""The platform, and the attention backend, by SGLang's names."""


def activate() -> str | None:
    """Return the platform's class where it was asked for: it must never take a machine's GPU out of SGLang's hands."""
    if os.environ.get("SGLANG_PLATFORM") != NAME:
        return None
    return "sglk.upstream.sglang_platform.platform.SglkCpuPlatform"


def register() -> None:
    """Register the attention backend, in each of SGLang's processes."""
    if os.environ.get("SGLANG_PLATFORM") == NAME:
        from sglk.upstream.sglang_platform.attention import register_attention

        register_attention()
