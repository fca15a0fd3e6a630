"""Prices come from the calibration that fits, and whoever uses them learns why they may not hold."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sglk.commands.calibrate_table import doubts
from sglk.config.compose import compose
from sglk.config.plan_schema import PlanConfig
from sglk.errors import ConfigError
from sglk.planner.calibration import find
from sglk.planner.calibration.entries import Way, settings_of
from sglk.planner.calibration.find import find_calibration, this_machine
from sglk.planner.calibration.record import Calibration, ServingPoint, ServingRecord, read
from sglk.planner.cost.calibrated import HostTime
from sglk.planner.cost.model import cost_model
from sglk.planner.cost.shape import StepShape
from tests.planner import machines
from tests.planner.calibrations import entry, write

STEP = StepShape(decodes=(300,) * 4, logits=4)


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def planned(*words: str) -> PlanConfig:
    config: PlanConfig = compose("plan", ("chip=cpu", "model=smollm2", "profiles=none", *words)).config
    return config


def test_a_calibration_of_this_machine_is_found_and_used() -> None:
    path = write(entry())
    assert str(path) == "calibration/cpu-amd-epyc-9000-64-core-x2.json"
    model = cost_model(planned())
    assert (model.basis.kind, model.basis.name, model.basis.notes) == ("calibration", str(path), ())
    assert model.step_s(STEP) == pytest.approx(machines.seconds(STEP) + 0.001 + 4 * 0.0001, rel=0.01)
    assert model.parts(STEP)["host"] == pytest.approx(0.0014)
    assert model.arrival_s == 0.004
    assert sum(model.parts(STEP).values()) == pytest.approx(model.step_s(STEP))


def test_a_file_says_the_same_after_it_was_written() -> None:
    path = write(entry(), entry(quantization="w8a8"))
    calibration = read(path)
    assert calibration.entries == [entry(), entry(quantization="w8a8")]
    # A reader of the file meets one point a line.
    lines = path.read_text().splitlines()
    assert sum('"prefills"' in line and '"seconds"' in line for line in lines) == 6


def test_a_new_entry_takes_the_place_of_the_one_of_its_kind_alone() -> None:
    calibration = read(write(entry(created="before"), entry(dtype="bf16", created="before")))
    after = calibration.with_entry(entry(created="now"))
    assert sorted((each.dtype, each.created) for each in after.entries) == [("bf16", "before"), ("fp32", "now")]


def test_a_calibration_of_another_machine_is_passed_over_unless_it_is_named() -> None:
    path = write(entry(), cores=96)
    with pytest.raises(ConfigError, match=r"no bandwidth_gb_s.*with 96 cores, and this is .*calibration=\S+ takes it"):
        cost_model(planned())
    named = cost_model(planned(), str(path))
    assert named.basis.kind == "calibration"
    assert "96 cores" in named.basis.notes[0]


@pytest.mark.parametrize(
    ("changes", "words", "note"),
    [
        ({"versions": {"sglk": "0.0.1", "torch": "1.0"}}, (), "made with torch 1.0, and here is"),
        ({}, ("runtime.kv_cache_dtype=int8",), "keys and values in fp32, not int8"),
        ({"weight_bits": 5.0}, ("runtime.load_format=dummy",), "weights of 5 bits in memory, and here they have 32"),
        ({"settings": {}}, ("backend.options.kernels=none",), "made with backend.options.kernels=null, not none"),
        ({"settings": {"backend.deny": "linear"}}, (), "made with backend.deny=linear, not null"),
        (
            {"settings": {"runtime.nan_guard": "true"}},
            ("runtime.nan_guard=false",),
            "runtime.nan_guard=true, not false",
        ),
        (
            {"settings": {"chip.bandwidth_gb_s": "20"}},
            ("chip.bandwidth_gb_s=80",),
            "made with chip.bandwidth_gb_s=20, not 80, which measured prices do not follow",
        ),
        ({"serving": ServingRecord(HostTime(0.001))}, (), "what serving adds was measured in an older way"),
        (
            {"serving": ServingRecord(HostTime(0.001), points=[ServingPoint(1, 0.01, 0.001, 4)])},
            (),
            "what serving adds was measured in an older way",
        ),
    ],
)
def test_what_is_different_is_told(changes: dict[str, Any], words: tuple[str, ...], note: str) -> None:
    write(entry(**changes))
    assert any(note in each for each in cost_model(planned(*words)).basis.notes)


def test_what_is_as_it_was_measured_is_not_told() -> None:
    way = machines.way()
    write(entry(weight_bits=way.weight_bits, settings=way.settings))
    assert cost_model(planned()).basis.notes == ()


def test_weights_in_other_bits_have_entries_of_their_own() -> None:
    files, dummy = entry(weight_bits=5.0, settings={}), entry(weight_bits=32.0, settings={})
    both = Calibration("cpu", this_machine("Processor", 2), []).with_entry(entry()).with_entry(files).with_entry(dummy)
    # What an older version measured does not tell, and is replaced.
    assert both.entries == [files, dummy]
    assert both.with_entry(entry(weight_bits=5.0, settings={}, created="now")).entries[0] == dummy


def test_prices_are_carried_over_to_a_model_of_about_the_same_size_alone() -> None:
    write(entry())
    like = planned("model.num_hidden_layers=12", "model.hidden_size=768", "model.num_attention_heads=12")
    model, own = cost_model(like), cost_model(planned())
    assert "carried over" in model.basis.notes[0]
    assert 0.2 < model.step_s(STEP) / own.step_s(STEP) < 1
    way = Way.of(planned("model=qwen7b"))
    search = find_calibration("cpu", way)
    assert search.found is None
    assert "no entry for backend cpu in fp32 and a model of about the size of qwen7b" in search.passed_over[0]


def test_the_entry_that_fits_best_is_taken() -> None:
    write(entry(tp_size=2), entry(), entry(dtype="bf16"))
    search = find_calibration("cpu", Way.of(planned()))
    assert search.found is not None
    assert (search.found.entry.tp_size, search.found.entry.dtype, search.found.notes) == (1, "fp32", ())


def test_a_folder_has_the_calibrations_of_several_chips() -> None:
    write(entry(), cores=96)
    write(entry(backend="cuda", dtype="bf16"), chip="h100")
    find.FOLDER.rename("elsewhere")
    for config, name in (
        (planned(), "elsewhere/cpu-amd-epyc-9000-64-core-x2.json"),
        (compose("plan", ("chip=h100", "model=smollm2", "profiles=none")).config, "elsewhere/h100-amd"),
    ):
        assert cost_model(config, "elsewhere").basis.name.startswith(name)
    assert cost_model(compose("plan", ("chip=l20", "profiles=none")).config, "elsewhere").basis.kind == "roofline"


def test_none_means_peak_figures() -> None:
    write(entry(), chip="h100")
    assert cost_model(compose("plan", ("chip=h100", "model=smollm2", "profiles=none")).config, "none").basis.kind == (
        "roofline"
    )


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda data: data | {"chip": "h100"}, r"is of chip 'h100', not of 'cpu'; name its folder where several chips"),
        (lambda data: data | {"entries": []}, r"has no entry for backend cpu in fp32 .*only for nothing; run `sglk"),
        (
            lambda data: data | {"schema_version": 9},
            r"schema_version is 9, and this version of sglk reads 1; take it away,",
        ),
        (lambda data: {"a": 1}, r"schema_version is None"),
        (lambda data: [], r"schema_version is None"),
        (lambda data: data | {"machine": 3}, r"is no calibration: machine: expected an object, got 3"),
        (
            lambda data: data | {"entries": [data["entries"][0] | {"form": "wild"}]},
            r"form 'wild' is not one of straight, coarse, fine",
        ),
        (
            lambda data: data | {"entries": [data["entries"][0] | {"prices": {"warp": 1.0}}]},
            r"quantity 'warp' is unknown",
        ),
        (
            lambda data: data | {"entries": [data["entries"][0] | {"prices": {"layers": -1.0}}]},
            r"price of 'layers' is -1, not from 0 to 1e\+06 s",
        ),
    ],
)
def test_a_file_that_does_not_fit_is_refused_by_name(spoil: Any, message: str) -> None:
    path = write(entry())
    path.write_text(json.dumps(spoil(json.loads(path.read_text()))))
    with pytest.raises(ConfigError, match=message):
        cost_model(planned(), str(path))


def test_a_file_that_is_absent_or_no_json_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read the calibration 'absent.json'"):
        cost_model(planned(), "absent.json")
    Path("half.json").write_text('{"chip": "cpu", ')
    with pytest.raises(ConfigError, match=r"'half.json' is no calibration"):
        cost_model(planned(), "half.json")
    with pytest.raises(ConfigError, match=r"'/dev/zero' is no calibration: no regular file"):
        cost_model(planned(), "/dev/zero")


def test_prices_from_a_busy_machine_are_told_to_be_worth_little() -> None:
    assert list(doubts(entry())) == []
    once = [replace(point, repeats=1) for point in entry().points]
    assert list(doubts(entry(points=once))) == [
        "each step was measured once; raise calibrate.time_s or calibrate.repeats"
    ]
    restless = [replace(point, spread=0.3) for point in entry().points]
    (line,) = doubts(entry(points=restless))
    assert line.startswith("repeats of one step differ by 30% and predictions by 0%; where something else was running")


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"serving": ServingRecord(HostTime(-0.001))}, "serving time step_s=-0.001 is not from 0 to"),
        ({"serving": ServingRecord(arrival_s=-5.0)}, "serving time arrival_s=-5 is not from 0 to"),
        ({"numbers": {"hidden_size": 64}}, "has no intermediate_size above 0"),
        ({"numbers": {**machines.way().numbers, "head_dim": 0}}, "has no head_dim above 0"),
        ({"prices": {"layers": -1.0}}, "price of 'layers' is -1, not from 0 to"),
        ({"prices": {"layers": 1e308}}, r"price of 'layers' is 1e\+308, not from 0 to"),
        ({"serving": ServingRecord(delivery_s=1e7)}, r"serving time delivery_s=1e\+07 is not from 0 to"),
    ],
)
def test_a_file_with_figures_that_cannot_be_is_refused(changes: dict[str, Any], complaint: str) -> None:
    path = write(entry(**changes))
    with pytest.raises(ConfigError, match=complaint):
        read(path)


def test_ranks_that_sum_and_ranks_that_gather_have_entries_of_their_own() -> None:
    gathering, summing = ("runtime.tp_size=3",), ("runtime.tp_size=3", "runtime.enable_deterministic_inference=false")
    older = entry(tp_size=3)
    write(older)
    assert cost_model(planned(*gathering)).basis.notes == (
        "it was made where ranks sum or gather, which it does not say, and here they gather",
    )
    both = Calibration("cpu", this_machine("any", 2), [older]).with_entry(entry(tp_size=3, gathers=True))
    assert [each.gathers for each in both.entries] == [True]
    both = both.with_entry(entry(tp_size=3, gathers=False)).with_entry(entry(tp_size=3, gathers=True, created="now"))
    assert [(each.gathers, each.created == "now") for each in both.entries] == [(False, False), (True, True)]
    write(*both.entries)
    for words, gathers in ((gathering, True), (summing, False)):
        found = find_calibration("cpu", Way.of(planned(*words))).found
        assert found is not None
        assert (found.entry.gathers, found.notes) == (gathers, ())
    write(entry(tp_size=3, gathers=True))
    assert cost_model(planned(*summing)).basis.notes == ("it was made where ranks gather, and here they sum",)


def test_ranks_that_share_a_processor_are_no_others() -> None:
    path, words = write(entry()), ("runtime.tp_size=3",)
    missed = f"calibration '{path}' has no entry for backend cpu in fp32 with runtime.tp_size=3 and a model of about"
    with pytest.raises(ConfigError, match=missed):
        cost_model(planned(*words), str(path))
    with pytest.raises(ConfigError, match=r"states no bandwidth_gb_s .* it has smollm2 \(backend cpu in fp32\)"):
        cost_model(planned(*words))


def test_what_no_rank_had_to_bring_together_takes_the_time_of_the_chips_link() -> None:
    words = ("chip=cuda", "runtime.dtype=fp32")
    path = write(entry(backend="cuda", settings=settings_of(planned(*words))), chip="cuda")
    linked = (*words, "runtime.tp_size=3", "chip.interconnect_gb_s=50")
    model, shape = cost_model(planned(*linked), str(path)), StepShape(((64, 64),), logits=1)
    assert model.basis.notes == (
        "it was made with runtime.tp_size=1, not 3; what ranks bring together is priced by the chip's link, "
        "never measured",
    )
    peak = cost_model(planned(*linked, "chip.bandwidth_gb_s=1", "chip.peak_tflops={fp32: 1}"), "none")
    found = model.parts(shape)
    assert found["collectives"] == peak.parts(shape)["collectives"] > 0
    assert model.step_s(shape) == pytest.approx(sum(found.values()))
    with pytest.raises(ConfigError, match=r"has no entry for backend cuda in fp32 with runtime.tp_size=3"):
        cost_model(planned(*words, "runtime.tp_size=3"), str(path))
    write(entry(backend="cuda", tp_size=3, settings=settings_of(planned(*linked))), chip="cuda")
    alone = cost_model(planned(*words), str(path))
    assert alone.basis.notes == ("it was made with runtime.tp_size=3, not 1",)
    assert "collectives" not in alone.parts(shape)


def test_a_folder_that_cannot_be_looked_into_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(entry())
    monkeypatch.setattr(find.os, "access", lambda folder, _: folder != path.parent)
    for choice in ("auto", str(path.parent)):
        with pytest.raises(ConfigError, match=r"^cannot read the folder 'calibration' of calibrations: Permission"):
            cost_model(planned(), choice)
