import json
import os
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from sglk.config.compose import compose
from sglk.config.fleet import replica_configs
from sglk.config.provenance import ProfileRecord
from sglk.config.quoting import quoted
from sglk.server.announcement import announcement, profile_line, ready_line, say
from sglk.server.serve import load_deployment
from sglk.testing.tiny import write_tiny_model
from tests.server.serving import MODEL, Served, serving


def test_people_learn_what_is_served_and_how_to_try_it(served: Served) -> None:
    lines = list(announcement(served.deployment, served.url))

    assert MODEL in lines[0]
    assert "4096 tokens" in lines[0]
    assert "sglk tune chip=cpu model=/models/tiny workload=chat" in lines[1]
    assert served.url in lines[2]


def test_people_learn_how_to_get_guided_decoding(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sglk.server.announcement.guided_decoding_available", lambda: False)

    assert any("pip install 'sglk[guided]'" in line for line in announcement(served.deployment, served.url))


@pytest.mark.parametrize(("template", "route"), [("x", "/v1/chat/completions"), (None, "/v1/completions")])
def test_the_line_to_try_works(template: str | None, route: str) -> None:
    with serving(chat_template=template) as served:
        words = shlex.split(list(announcement(served.deployment, served.url))[-1])
        url, body = words[3], words[-1]

        assert url == f"{served.url}{route}"
        assert json.loads(body)["temperature"] == 0, "a newcomer's answers stay the same"
        assert served.client.post(url, content=body).status_code == 200


def test_parents_get_one_line_of_json(served: Served) -> None:
    word, _, facts = ready_line(served.deployment, served.url).partition(" ")

    assert word == "SGLK_READY"
    assert json.loads(facts)["url"] == served.url
    assert json.loads(facts)["pid"] == os.getpid()


def test_a_profile_is_named_with_what_it_promises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    gain = {"goodput": {"ratio": 1.12}, "ttft_s_p50": {"ratio": None}, "itl_s_p50": {"ratio": "good"}, "verdict": "-"}
    record = ProfileRecord(created="2026-11-29T10:00:00+00:00", gain=gain)

    config = compose("serve", ["chip=cpu", "model=smollm2"]).config
    line = profile_line(replace(config, profile=record), tmp_path / "profiles/cpu/smollm2.yaml")

    assert line == ("using profile profiles/cpu/smollm2.yaml (measured 2026-11-29, goodput +12 % against the defaults)")
    undated = profile_line(replace(config, profile=ProfileRecord()), tmp_path / "profiles/cpu/smollm2.yaml")
    assert undated == "using profile profiles/cpu/smollm2.yaml (measured at an unknown time)"


@pytest.mark.parametrize("given", ["smollm2", "MODEL", "./a b/tiny ü", "some/model-1b", "qwen7b"])
def test_how_to_make_a_profile_can_be_typed(given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("MODEL", "a b/tiny ü"):
        write_tiny_model(tmp_path / folder)
    value = str(tmp_path / given) if given == "MODEL" else given
    served = compose("serve", ["chip=cpu", quoted("model", value), "profiles=none"])

    command = profile_line(served.config, None).partition("make one with: ")[2]

    words = shlex.split(command)
    assert words[:2] == ["sglk", "tune"]
    assert compose("tune", words[2:]).config.model == served.config.model


def test_each_chip_of_a_server_is_told_of_with_its_own_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tuned = Path("profiles/h100/qwen7b.yaml")
    tuned.parent.mkdir(parents=True)
    tuned.write_text("# @package _global_\nprofile:\n  created: '2026-11-29T10:00:00+00:00'\n")
    groups = "groups='h100:0;kunlun:0;h100:1'"
    composed = compose("serve", ["model=qwen7b", "backend=sim", "runtime.load_format=dummy", groups])
    deployment = load_deployment(composed.config, composed.profile_path, replica_configs(composed))
    try:
        lines = [line for line in announcement(deployment, "http://x") if "profile" in line]
    finally:
        deployment.fleet.shutdown()
    assert lines == [
        "h100: using its tuned profile (measured 2026-11-29)",
        "kunlun: no tuned profile in use; make one with: sglk tune chip=kunlun model=qwen7b workload=chat",
    ]


def test_an_output_that_takes_nothing_is_borne(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        monkeypatch.setattr("sys.stdout", full)
        say(["x"])
    assert "cannot announce" in caplog.text
    say(["on a closed file"])
    monkeypatch.setattr("sys.stdout", None)
    say(["x"])
