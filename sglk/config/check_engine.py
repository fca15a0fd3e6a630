"""Rules of the `engine` group."""

from collections.abc import Iterator

from sglk.config.check_nodes import node_problems
from sglk.config.engine_schema import EngineConfig
from sglk.config.profiles import NATIVE
from sglk.config.ranges import listed, one_of, positive

ENGINES = ("native", "sglang", "vllm")


def engine_problems(engine: EngineConfig) -> Iterator[str]:
    """Yield what is wrong with the settings of the engine, as far as it shows without a table of its flags."""
    yield from one_of("engine.name", engine.name, ENGINES)
    yield from positive("engine.start_timeout_s", engine.start_timeout_s)
    if not engine.logs:
        yield "engine.logs is empty; write a folder, such as ./logs"
    if engine.python is not None and not engine.python:
        yield "engine.python is empty; name an interpreter, or write null for the one that runs sglk"
    if engine.name != NATIVE:
        if not engine.version:
            yield f"engine.version is not given; write the version of {engine.name}, or engine={engine.name}"
        yield from node_problems(engine)
        return
    for name in ("nnodes", "node_rank", "dist_init_addr", "executor"):
        if (value := getattr(engine, name)) != getattr(EngineConfig(), name):
            yield f"engine.{name}={value} has no effect with engine=native, which stays on one machine; leave it out"
    if engine.extra_args:
        names = listed(f"engine.extra_args.{name}" for name in engine.extra_args)
        yield f"{names} has no effect with engine=native, which takes its settings from `runtime`; leave it out"
    if engine.version is not None:
        yield f"engine.version={engine.version} has no effect with engine=native, which is part of sglk; leave it out"
