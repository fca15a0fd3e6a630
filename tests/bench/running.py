"""Runs against mock servers."""

import dataclasses
from typing import Any

from sglk.bench.record import Record, RequestRecord
from sglk.bench.run import measure
from sglk.bench.target import Target
from sglk.config.bench_schema import LoadConfig, WorkloadConfig
from tests.bench.mock_server import MockServer

MODELS: dict[str, object] = {"/v1/models": {"data": [{"id": "mock"}]}}
NATIVE = MODELS | {"/model_info": {"vocab_size": 1000}}


def workload(kind: str = "random", **changes: Any) -> WorkloadConfig:
    defaults = WorkloadConfig(
        name=kind, kind=kind, num_requests=8, input_len=40, output_len=4, concurrency=2, warmup_requests=2
    )
    return dataclasses.replace(defaults, **changes)


def run(server: MockServer, config: WorkloadConfig | None = None, **load: Any) -> Record:
    return measure(Target(server.url), config or workload(), LoadConfig(**load), command="sglk bench")


def measured(record: Record) -> list[RequestRecord]:
    return [request for request in record.requests if request.phase == "measured"]
