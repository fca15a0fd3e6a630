"""Rules of an upstream engine that spans several machines."""

import re
from collections.abc import Iterator

from sglk.config.bench_schema import BenchConfig
from sglk.config.engine_schema import EngineConfig
from sglk.config.profiles import NATIVE
from sglk.config.ranges import at_least, one_of
from sglk.config.schema import ServeConfig

EXECUTORS = ("mp", "ray")

_ADDRESS = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\]):(\d{1,5})")


def node_problems(engine: EngineConfig) -> Iterator[str]:
    """Yield what is wrong with the machines of an engine, as far as it shows without its devices."""
    yield from at_least("engine.nnodes", engine.nnodes, 1)
    if engine.executor is not None:
        yield from one_of("engine.executor", engine.executor, EXECUTORS)
        if engine.name != "vllm":
            yield f"engine.executor={engine.executor} has no equivalent in {engine.name}; leave it out"
            return
    if engine.executor == "ray":
        yield from _ray_problems(engine)
        return
    if not 0 <= engine.node_rank < max(engine.nnodes, 1):
        yield (
            f"engine.node_rank={engine.node_rank} is not one of engine.nnodes={engine.nnodes} machines; write 0 to"
            f" {max(engine.nnodes, 1) - 1}"
        )
    if engine.nnodes > 1 and engine.dist_init_addr is None:
        yield (
            f"engine.nnodes={engine.nnodes} needs the address of machine 0; write"
            " engine.dist_init_addr=HOST:PORT, the same on all machines"
        )
    if engine.dist_init_addr is not None:
        yield from _address_problems(engine)


def span_problems(config: ServeConfig) -> Iterator[str]:
    """Yield what does not fit between the machines of an engine and its devices."""
    engine, tp_size = config.engine, config.runtime.tp_size
    if engine.nnodes <= 1 or engine.name == NATIVE:
        return
    spans = f"engine.nnodes={engine.nnodes}"
    if isinstance(config, BenchConfig) and config.bench.url is None:
        yield f"{spans}: the other machines are not started for a measurement; serve it, and write bench.url"
    if len(config.groups) > 1:
        yield f"{spans} is one replica over all machines, groups are several; leave groups out"
    if tp_size is None:
        yield f"{spans} needs runtime.tp_size, the devices of all machines together"
    elif tp_size % engine.nnodes:
        yield f"runtime.tp_size={tp_size} is not a multiple of {spans}; every machine gives as many devices"
    elif len(config.groups) == 1 and not _are_first(config.groups[0].devices, tp_size):
        yield f"{spans} takes the first {tp_size // engine.nnodes} devices of every machine; leave groups out"


def local_devices(config: ServeConfig) -> list[str]:
    """Return those devices of a replica that are on this machine."""
    devices: list[str] = config.groups[0].devices
    engine = config.engine
    return devices[: len(devices) // engine.nnodes]


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of an address that has been checked."""
    host, _, port = address.rpartition(":")
    return host, int(port)


def _are_first(devices: list[str], count: int) -> bool:
    return [device.partition(":")[2] for device in devices] == [str(index) for index in range(count)]


def _address_problems(engine: EngineConfig) -> Iterator[str]:
    address = f"engine.dist_init_addr={engine.dist_init_addr}"
    found = _ADDRESS.fullmatch(str(engine.dist_init_addr))
    if found is None or not 1 <= int(found.group(1)) <= 65535:
        yield f"{address} is not an address; write HOST:PORT, such as 10.0.0.7:20000"
    elif engine.nnodes == 1:
        yield f"{address} has no effect on one machine; write engine.nnodes, or leave it out"


def _ray_problems(engine: EngineConfig) -> Iterator[str]:
    if engine.node_rank:
        yield f"engine.node_rank={engine.node_rank}: Ray starts what runs on other machines; serve on its head alone"
    if engine.dist_init_addr is not None:
        yield (
            f"engine.dist_init_addr={engine.dist_init_addr} has no effect with engine.executor=ray, which asks the"
            " cluster; write $RAY_ADDRESS, or leave it out"
        )
