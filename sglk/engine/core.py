"""The part of an engine that depends on its runtime parameters, and that is replaced when they change."""

from dataclasses import dataclass, replace
from typing import Protocol

from sglk.cache.pages import PagePool
from sglk.cache.radix import RadixCache
from sglk.config.schema import RuntimeConfig
from sglk.engine.limits import Limits
from sglk.engine.messages import EngineStats
from sglk.engine.scheduler import Scheduler
from sglk.models.context_length import served_context_length


class KVDevice(Protocol):
    """What a core needs of a `Runner`: where the KV pool is, and what the model takes."""

    @property
    def vocab_size(self) -> int:
        """Token ids run from 0 to `vocab_size - 1`."""

    @property
    def context_length(self) -> int:
        """Most tokens of prompt and answer together that the model can take."""

    def kv_capacity_tokens(self, runtime: RuntimeConfig) -> int:
        """Return the KV tokens that fit; raises CapacityError when none does."""

    def allocate_kv(self, num_pages: int, page_size: int) -> None:
        """Make an empty KV pool."""


@dataclass(frozen=True, slots=True)
class Core:
    """KV pages, prefix cache and scheduler of one set of runtime parameters."""

    runtime: RuntimeConfig
    pool: PagePool
    cache: RadixCache
    scheduler: Scheduler
    limits: Limits

    @classmethod
    def build(cls, runner: KVDevice, runtime: RuntimeConfig, eos_token_ids: frozenset[int]) -> "Core":
        """Plan the KV pool and allocate it on the device; raises CapacityError or ConfigError."""
        context_length = served_context_length(runner.context_length, runtime)
        pool = PagePool(runner.kv_capacity_tokens(runtime) // runtime.page_size, runtime.page_size)
        runner.allocate_kv(pool.num_pages, pool.page_size)
        cache = RadixCache(pool, min_len=runtime.radix_min_len, enabled=not runtime.disable_radix_cache)
        scheduler = Scheduler(runtime, pool, cache, context_length, eos_token_ids)
        limits = Limits(runner.vocab_size, context_length, pool.num_tokens, runtime.allow_auto_truncate)
        return cls(runtime, pool, cache, scheduler, limits)

    @property
    def evictable_tokens(self) -> int:
        """KV tokens that the prefix cache alone holds."""
        return self.cache.evictable_pages * self.pool.page_size

    @property
    def used_tokens(self) -> int:
        """KV tokens, in whole pages, that live requests hold."""
        return (self.pool.num_pages - self.pool.free_pages) * self.pool.page_size - self.evictable_tokens

    def add_counters(self, stats: EngineStats) -> EngineStats:
        """Return `stats` with what this core has counted added."""
        scheduler = self.scheduler
        return replace(
            stats,
            prompt_tokens=stats.prompt_tokens + scheduler.prompt_tokens,
            cached_prompt_tokens=stats.cached_prompt_tokens + scheduler.cached_prompt_tokens,
            retractions=stats.retractions + scheduler.retractions,
            evicted_tokens=stats.evicted_tokens + self.cache.evicted_pages * self.pool.page_size,
        )
