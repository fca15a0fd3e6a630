"""The server keeps what its description promises, whatever is sent to it."""

import html
import json
import re
from collections.abc import Iterator

import pytest

from tests.server.serving import Served, answering, serving

EXAMPLES = 25
"""Generated requests for each route."""


CHECKS = [
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
]


@pytest.fixture(scope="module")
def pair() -> Iterator[Served]:
    runners = {name: answering(name, vocab_size=320) for name in "ab"}
    with serving(runners) as served:
        yield served


def test_every_reference_leads_to_a_schema(pair: Served) -> None:
    text = pair.get("/openapi.json").text
    tree = json.loads(text)
    named = {part.partition('"')[0] for part in text.split("#/components/schemas/")[1:]}
    assert named <= set(tree["components"]["schemas"])
    assert {"Error", "State", "StreamOptions", "NativeSampling"} <= named
    assert "422" not in text
    for path, operations in tree["paths"].items():
        for operation in operations.values():
            assert {"4XX", "5XX"} <= set(operation["responses"]), path


def test_the_page_to_read_names_all_and_takes_nothing_from_elsewhere(pair: Served) -> None:
    """Machines that serve often reach no other site."""
    answer, tree = pair.get("/docs"), pair.get("/openapi.json").json()
    assert answer.headers["content-security-policy"].startswith("default-src 'none'; style-src 'sha256-")
    for path, operations in tree["paths"].items():
        for method, operation in operations.items():
            assert f"<b>{method.upper()}</b> <code>{path}</code>" in answer.text
            assert html.escape(operation["description"]) in answer.text
    for field in ("prompt</code>*", "stream_options.include_usage</code><", "sampling_params.max_new_tokens</code><"):
        assert f"<code>{field}" in answer.text
    assert re.findall(r'(?:src|href)="([^"]*)"', answer.text) == ["openapi.json", "dashboard"]


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_generated_requests_get_what_the_description_promises(pair: Served) -> None:
    schemathesis = pytest.importorskip("schemathesis")
    hypothesis = pytest.importorskip("hypothesis")
    schemathesis.checks.load_all_checks()
    held = schemathesis.checks.CHECKS.get_by_names(CHECKS)
    schema = schemathesis.openapi.from_url(f"{pair.url}/openapi.json")
    asked = 0
    for result in schema.exclude(path="/dashboard/events").get_all_operations():
        operation = result.ok()
        takes_something = operation.body or operation.query or operation.path_parameters
        modes = list(schemathesis.GenerationMode) if takes_something else [schemathesis.GenerationMode.POSITIVE]
        cases = hypothesis.strategies.one_of([operation.as_strategy(generation_mode=mode) for mode in modes])

        @hypothesis.settings(
            max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(hypothesis.HealthCheck)
        )
        @hypothesis.seed(0)
        @hypothesis.given(case=cases)
        def holds(case: object) -> None:
            nonlocal asked
            asked += 1
            case.call_and_validate(checks=held, timeout=60)  # type: ignore[attr-defined]

        holds()
    assert asked > 200
    assert pair.get("/health").json()["status"] == "ok"
