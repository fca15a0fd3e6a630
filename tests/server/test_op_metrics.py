"""Which ops fall back, were switched off or failed is seen from outside, under few names."""

from prometheus_client.parser import text_string_to_metric_families

from sglk.backends.ops import Choice, Quarantine
from sglk.engine.op_report import OpReport
from sglk.testing.scripted import ScriptedRunner
from tests.server.serving import serving

REPORT = OpReport(
    choices=(
        Choice(
            "rope", (("dtype", "fp16"), ("head_dim", 96)), "reference", "chip: head_dim in {64, 128}", fallback=True
        ),
        Choice(
            "rope", (("dtype", "fp16"), ("head_dim", 80)), "reference", "chip: head_dim in {64, 128}", fallback=True
        ),
        Choice("route", (("experts", 8),), "chip", "first choice of the backend", fallback=False),
    ),
    quarantines=(Quarantine("silu_and_mul", "chip", "quarantined, it returned NaN or infinity"),),
    faults={("silu_and_mul", "chip", "op"): 2},
)


class Reporting(ScriptedRunner):
    def op_report(self) -> OpReport:
        return REPORT


def test_metrics_count_fallbacks_quarantines_and_faults_by_op() -> None:
    with serving(Reporting()) as served:
        families = text_string_to_metric_families(served.get("/metrics").text)
    samples = {
        (
            sample.name,
            *sorted((key, value) for key, value in sample.labels.items() if key not in ("model", "group", "replica")),
        ): sample.value
        for family in families
        for sample in family.samples
        if sample.name.startswith("sglk_op_")
    }
    assert samples == {
        ("sglk_op_fallbacks", ("op", "rope")): 2,
        ("sglk_op_quarantined", ("op", "silu_and_mul"), ("provider", "chip")): 1,
        ("sglk_op_faults_total", ("cause", "op"), ("op", "silu_and_mul"), ("provider", "chip")): 2,
    }


def test_server_info_says_who_runs_what_and_why() -> None:
    with serving(Reporting()) as served:
        (ops,) = served.get("/server_info").json()["ops"].values()
    assert ops["choices"][0] == {
        "op": "rope",
        "shape": {"dtype": "fp16", "head_dim": 96},
        "provider": "reference",
        "fallback": True,
        "reason": "chip: head_dim in {64, 128}",
    }
    assert [choice["fallback"] for choice in ops["choices"]] == [True, True, False]
    assert ops["quarantined"] == [
        {"op": "silu_and_mul", "provider": "chip", "reason": "quarantined, it returned NaN or infinity"}
    ]
    assert ops["faults"] == [{"op": "silu_and_mul", "provider": "chip", "cause": "op", "requests": 2}]
