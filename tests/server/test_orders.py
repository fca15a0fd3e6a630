import asyncio
from functools import partial

from sglk.server.orders import Order, Orders

ORDER = Order("drain", 5.0)


def test_the_same_order_again_changes_nothing_and_another_takes_its_place() -> None:
    told: list[str] = []

    async def work(name: str) -> None:
        told.append(f"{name} begins")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            told.append(f"{name} ends")
            raise

    async def give() -> None:
        orders = Orders()
        for name, order in [("first", ORDER), ("again", Order("drain", 5.0)), ("longer", Order("drain", 9.0))]:
            orders.give("a", order, partial(work, name))
            await asyncio.sleep(0)
        orders.give("b", ORDER, partial(work, "of another group"))
        orders.give("a", Order("restart", 9.0), partial(work, "restart"))
        await asyncio.sleep(0)
        orders.cancel("a")
        orders.cancel("a")
        await asyncio.sleep(0)

    asyncio.run(give())
    assert told[:2] == ["first begins", "first ends"]
    assert told[2] == "longer begins"
    assert set(told[3:6]) == {"longer ends", "of another group begins", "restart begins"}
    assert told[6] == "restart ends"


def test_an_order_that_is_carried_out_can_be_given_again() -> None:
    done: list[int] = []

    async def work() -> None:
        done.append(len(done))

    async def give() -> None:
        orders = Orders()
        for _ in range(2):
            orders.give("a", ORDER, work)
            # Carried out, and then forgotten.
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    asyncio.run(give())
    assert done == [0, 1]
