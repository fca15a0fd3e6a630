"""Contract of ops: every implementation agrees with the reference wherever its demands are met."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from sglk.backends.base import DeviceBackend
from sglk.operators.cases import OPS, OpCase, matrix
from sglk.operators.comparison import mismatch
from sglk.testing.contract.device_tests import DeviceTests


class OpTests(DeviceTests):
    """`ops`."""

    @pytest.mark.parametrize("op", sorted(OPS))
    def test_an_op_agrees_with_the_reference(self, backend: DeviceBackend, op: str) -> None:
        """Over shapes, dtypes, page sizes, KV dtypes and schemes that the backend declares; errors bounded by dtype."""
        wrong = [words for case in cases(backend, op) for words in problems(backend, case)]
        assert not wrong, "\n".join(wrong)

    @pytest.mark.parametrize("op", sorted(OPS))
    def test_an_op_runs_whatever_the_shape(self, backend: DeviceBackend, op: str) -> None:
        """What no implementation takes, the reference takes; the choice says who and why."""
        for case in cases(backend, op):
            choice = backend.ops.select(OPS[op], **case.traits).choice
            assert choice.reason, case
            assert choice.fallback or choice.provider in {
                each.provider for each in backend.ops.implementations(OPS[op])
            }

    def test_replicas_call_ops_at_the_same_time(self, backend: DeviceBackend) -> None:
        """Two backends on one device, each in a thread of its own, with other values: neither sees the other's."""
        other = self.make_backend()
        with ThreadPoolExecutor(2) as threads:
            for op in sorted(OPS):
                for case in cases(backend, op)[:1]:
                    calls = ((backend, case), (other, replace(case, seed=case.seed + 1)))
                    found = [threads.submit(problems, *call) for call in calls]
                    wrong = [words for each in found for words in each.result()]
                    assert not wrong, "at the same time as in another thread: " + "\n".join(wrong)


def cases(backend: DeviceBackend, op: str) -> list[OpCase]:
    """Return the calls of one op that the backend declares to take."""
    return [case for case in matrix(backend.capabilities) if case.op == op]


def problems(backend: DeviceBackend, case: OpCase) -> list[str]:
    """Return what is wrong with the implementations that take the case."""
    found = []
    for implementation in backend.ops.implementations(OPS[case.op]):
        if backend.ops.refusal(implementation, case.traits) is None:
            problem = mismatch(case, implementation, backend)
            if problem is not None:
                found.append(f"{implementation.provider}, {case}: {problem}")
    return found
