"""The contract suite catches backends that break their word, each in the test that says so."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from itertools import count, cycle
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
import torch

from sglk.backends import cpu_ops, reference
from sglk.backends.base import DeviceBackend, DeviceGraph
from sglk.backends.cpu import CpuBackend
from sglk.errors import BackendError, CapacityError
from sglk.testing.contract import BackendContract, backend_contract


class KeepsMemory(CpuBackend):
    def free(self, tensor: torch.Tensor) -> None:
        """Forget to."""


class PromisesAnything(CpuBackend):
    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device="meta" if shape[0] > 2**30 else "cpu")


class SaysNothingOfSizes(CpuBackend):
    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        try:
            return super().allocate(shape, dtype)
        except CapacityError:
            raise CapacityError("too much") from None


class CopiesBits(CpuBackend):
    def copy(self, src: torch.Tensor, dst: torch.Tensor) -> None:
        dst.view(torch.uint8).view(-1)[: src.numel()] = src.contiguous().view(torch.uint8).view(-1)[: src.numel()]


class LearnsToo(CpuBackend):
    def execute_runnable(self, runnable: Callable[[], Any]) -> Any:
        return runnable()


class TakesAnyOption(CpuBackend):
    def __init__(self, **options: Any) -> None:
        super().__init__(num_threads=1)


class IsOld(CpuBackend):
    api_version = 0


class NamesOddDtypes(CpuBackend):
    capabilities = replace(CpuBackend.capabilities, kv_cache_dtypes=frozenset({"fp32", "bf16", "fp16", "fp4"}))


class HasNoMeaningForAuto(CpuBackend):
    capabilities = replace(CpuBackend.capabilities, kv_cache_dtypes=frozenset({"int8"}))


class AddsNothing(CpuBackend):
    def process_group(self, store: Any, rank: int, size: int, timeout: timedelta) -> Any:
        class Group:
            def allreduce(self, tensors: list[torch.Tensor]) -> Any:
                return self

            def allgather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor]) -> Any:
                return self

            def wait(self) -> None:
                return None

        return Group()


class Recorded:
    def __init__(self, result: Any) -> None:
        self.result = result
        self.replay = lambda: result


class RemembersResults(CpuBackend):
    capabilities = replace(CpuBackend.capabilities, eager_capture=False)

    def capture_graph(self, runnable: Callable[[], Any]) -> DeviceGraph[Any]:
        return Recorded(runnable())


class StoresCoarsely(CpuBackend):
    def __init__(self, **options: Any) -> None:
        super().__init__(num_threads=1)

        def store(k: torch.Tensor, v: torch.Tensor, *rest: Any) -> None:
            reference.store_kv.reference((k * 8).round() / 8, v, *rest)

        self.ops.register(reference.store_kv, "coarse", store)


class SeesTheFuture(CpuBackend):
    """Its prefill lets a query see the tokens after it."""

    def __init__(self, **options: Any) -> None:
        super().__init__(num_threads=1)

        def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, rows: Any, *rest: Any) -> torch.Tensor:
            rows.causal_masks = [torch.ones_like(mask) for mask in rows.causal_masks]
            return reference.attention_prefill.reference(q, k, v, rows, *rest)

        self.ops.register(reference.attention_prefill, "eager", attend)


class RoundsAway(CpuBackend):
    """Its activation is right to two digits."""

    def __init__(self, **options: Any) -> None:
        super().__init__(num_threads=1)
        self.ops.register(reference.silu_and_mul, "rough", lambda x: cpu_ops.silu_and_mul(x) * 1.01)


class SpoilsItsQueries(CpuBackend):
    """Its attention uses the queries' memory for its own ends."""

    def __init__(self, **options: Any) -> None:
        super().__init__(num_threads=1)

        def attend(q: torch.Tensor, *rest: Any) -> torch.Tensor:
            out = reference.attention_decode.reference(q, *rest)
            q.zero_()
            return out

        self.ops.register(reference.attention_decode, "careless", attend)


class SpoilsWeights(CpuBackend):
    def __init__(self, **options: Any) -> None:
        super().__init__(num_threads=1)

        def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
            out = reference.linear.reference(x, weight, bias)
            weight.mul_(1.001)
            return out

        self.ops.register(reference.linear, "careless", linear)


class ReturnsOneBuffer(CpuBackend):
    """Its norm writes every result into the same memory."""

    def __init__(self, **options: Any) -> None:
        super().__init__(num_threads=1)
        buffer = torch.empty(100_000)

        def norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
            return buffer.view(x.dtype)[: x.numel()].view_as(x).copy_(reference.rms_norm.reference(x, weight, eps))

        self.ops.register(reference.rms_norm, "thrifty", norm)


class ReturnsTwoBuffersInTurns(CpuBackend):
    def __init__(self, **options: Any) -> None:
        super().__init__(num_threads=1)
        buffers = cycle([torch.empty(100_000), torch.empty(100_000)])

        def norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
            buffer = next(buffers).view(x.dtype)
            return buffer[: x.numel()].view_as(x).copy_(reference.rms_norm.reference(x, weight, eps))

        self.ops.register(reference.rms_norm, "thrifty", norm)


class SharesScratchMemory(CpuBackend):
    """Its activation works in memory of the module, which two replicas write to at the same time."""

    scratch = torch.empty(100_000)
    both_wrote = Barrier(2)
    calls = count()

    def __init__(self, **options: Any) -> None:
        super().__init__(num_threads=1)

        def activate(x: torch.Tensor) -> torch.Tensor:
            own = self.scratch.view(x.dtype)[: x.numel()].view_as(x).copy_(x)
            if next(self.calls) < 2:
                self.both_wrote.wait(120)
            return reference.silu_and_mul.reference(own)

        self.ops.register(reference.silu_and_mul, "shared", activate)


class KeepsNoRecord(CpuBackend):
    peak_memory_bytes = DeviceBackend.peak_memory_bytes


def contract_of(backend: type[CpuBackend]) -> BackendContract:
    return backend_contract(backend, num_threads=1)()


@pytest.mark.parametrize(
    ("backend", "test"),
    [
        (KeepsMemory, "test_what_is_allocated_is_not_free_and_what_is_freed_is"),
        (PromisesAnything, "test_more_than_there_is_is_refused_with_both_figures_and_harms_nothing"),
        (SaysNothingOfSizes, "test_more_than_there_is_is_refused_with_both_figures_and_harms_nothing"),
        (CopiesBits, "test_a_copy_converts_where_the_dtypes_differ"),
        (LearnsToo, "test_work_runs_without_autograd_and_returns_what_it_returns"),
        (TakesAnyOption, "test_an_unknown_option_is_refused_by_name"),
        (IsOld, "test_it_is_written_for_this_version_of_the_contract"),
        (NamesOddDtypes, "test_the_table_can_be_meant"),
        (HasNoMeaningForAuto, "test_the_table_can_be_meant"),
        (AddsNothing, "test_devices_add_up_or_say_that_they_cannot"),
        (RemembersResults, "test_a_graph_repeats_work_on_new_values"),
        (StoresCoarsely, "test_every_kv_dtype_keeps_values_within_its_error"),
    ],
)
def test_a_broken_promise_is_found(backend: type[CpuBackend], test: str) -> None:
    contract = contract_of(backend)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        getattr(contract, test)(contract.make_backend())


@pytest.mark.parametrize(
    ("backend", "op"),
    [(StoresCoarsely, "store_kv"), (SeesTheFuture, "attention_prefill"), (RoundsAway, "silu_and_mul")],
)
def test_a_wrong_op_is_found_by_itself_and_its_provider_is_named(backend: type[CpuBackend], op: str) -> None:
    contract = contract_of(backend)
    with pytest.raises(AssertionError, match=r"^(coarse|eager|rough), "):
        contract.test_an_op_agrees_with_the_reference(contract.make_backend(), op)


@pytest.mark.parametrize(
    ("backend", "op", "words"),
    [
        (SpoilsItsQueries, "attention_decode", "overwrites argument 0, which its caller goes on to use"),
        (SpoilsWeights, "linear", "overwrites argument 1, which its caller goes on to use"),
        (ReturnsOneBuffer, "rms_norm", "returns the same memory at each call"),
        (ReturnsTwoBuffersInTurns, "rms_norm", "returns the same memory at each call"),
    ],
)
def test_an_op_that_does_more_than_return_its_result_is_found(backend: type[CpuBackend], op: str, words: str) -> None:
    contract = contract_of(backend)
    with pytest.raises(AssertionError, match=words):
        contract.test_an_op_agrees_with_the_reference(contract.make_backend(), op)


def test_scratch_memory_that_replicas_share_is_found() -> None:
    contract = contract_of(SharesScratchMemory)
    with pytest.raises(AssertionError, match=r"at the same time as in another thread: shared, silu_and_mul"):
        contract.test_replicas_call_ops_at_the_same_time(contract.make_backend())


def test_a_backend_that_keeps_no_record_of_its_peak_is_not_asked_for_one() -> None:
    contract = contract_of(KeepsNoRecord)
    with pytest.raises(pytest.skip.Exception, match="keeps no record"):
        contract.test_the_peak_never_falls(contract.make_backend())


def test_a_wrong_op_is_found_in_a_model_s_answers(tmp_path: Path) -> None:
    contract = contract_of(SeesTheFuture)
    with pytest.raises(AssertionError, match="has doubts"):
        contract.test_a_model_answers_as_it_does_by_the_reference(contract.make_backend(), tmp_path, "LlamaForCausalLM")


def test_an_absent_device_is_skipped_with_its_reason() -> None:
    def absent(**options: Any) -> CpuBackend:
        raise BackendError("no card in this machine; plug one in")

    with pytest.raises(pytest.skip.Exception, match="no card in this machine"):
        backend_contract(absent)().device_or_skip()
