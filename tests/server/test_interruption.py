import asyncio

import pytest

from sglk.server.interruption import Interruption


def test_what_a_task_waits_for_ends_by_the_first_error_and_the_task_goes_on() -> None:
    async def interrupted() -> str:
        waiting = Interruption()
        asyncio.get_running_loop().call_soon(waiting.end_by, KeyError("first"))
        asyncio.get_running_loop().call_soon(waiting.end_by, ValueError("second"))
        with pytest.raises(KeyError, match="first"), waiting:
            await asyncio.Event().wait()
        await asyncio.sleep(0)
        return "went on"

    assert asyncio.run(interrupted()) == "went on"


def test_a_cancellation_by_others_stays_one() -> None:
    async def cancelled() -> None:
        with Interruption():
            await asyncio.Event().wait()

    async def run() -> None:
        task = asyncio.ensure_future(cancelled())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
