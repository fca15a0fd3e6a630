"""Servers that say odd things of themselves are measured, and their records can be read again."""

import json
from typing import Any

import pytest

from sglk.bench.record import Record
from sglk.bench.run import measure
from sglk.bench.statement import counters, printable, statement
from sglk.bench.target import Target
from sglk.config.bench_schema import LoadConfig, WorkloadConfig
from tests.bench.cached_server import CachedServer

SMALL = WorkloadConfig(
    name="random", kind="random", num_requests=2, input_len=16, output_len=4, concurrency=1, warmup_requests=1
)


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        ("/metrics", b"<html><body>a{b 1</body></html>"),
        ("/metrics", b"# TYPE sglk_x_total counter\nsglk_x_total NaN\n"),
        ("/v1/models", {"data": None}),
        ("/v1/models", {"data": [1, None, {"id": 3}]}),
        ("/v1/models", [1, 2]),
        ("/model_info", {"vocab_size": "abc", "special_token_ids": 3}),
        ("/model_info", {"vocab_size": 1, "special_token_ids": [0]}),
        ("/model_info", {"vocab_size": 1000, "special_token_ids": list(range(1000))}),
        ("/server_info", {"versions": [1], "peak_memory_bytes": "lots", "runtime": 3, "device": 4, "dtype": {}}),
        ("/server_info", {"kv_capacity_tokens": 10**400, "runtime": {"a": float("nan"), "b": float("inf")}}),
        ("/server_info", b"[" * 100_000),
        ("/server_info", b'{"runtime": ' + b'{"a": ' * 200 + b"1" + b"}" * 201),
    ],
)
def test_what_makes_no_sense_counts_as_not_said(path: str, answer: Any) -> None:
    with CachedServer() as server:
        server.routes[path] = answer
        record = measure(Target(server.url), SMALL, LoadConfig())
    assert record.counts.completed == 2
    assert Record.from_json(record.to_json()) == record


def test_figures_are_finite_and_the_rest_is_kept() -> None:
    said = statement('{"a": [1, NaN, 1e999, ' + "9" * 30 + '], "b": true}')
    assert said == {"a": [1, None, None, None], "b": True}
    assert statement(json.dumps([1])) == {}


def test_counters_are_summed_over_labels() -> None:
    text = '# TYPE sglk_x_total counter\nsglk_x_total{a="1"} 2\nsglk_x_total{a="2"} 3\n'
    assert counters(text) == {"x": 5.0}


def test_terminal_codes_are_no_text() -> None:
    assert printable("\x1b[31mred\x1b[0m\nnext\tword\x07 é") == "[31mred [0m next word é"
