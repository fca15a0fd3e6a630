"""Weights follow a file, and a bad file changes nothing."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from sglk.cluster.router import Router
from sglk.cluster.weights_file import WeightsFile
from sglk.testing.scripted import ScriptedRunner
from tests.cluster.fleet import fleet


@pytest.fixture
def router() -> Iterator[Router]:
    with fleet({"a": ScriptedRunner(), "b": ScriptedRunner()}, {"a": 80, "b": 20}) as router:
        yield router


def replace(path: Path, text: str | bytes) -> None:
    """Write as a configuration centre does: a whole file under its name at once."""
    new = path.with_suffix(".new")
    new.write_bytes(text.encode() if isinstance(text, str) else text)
    new.replace(path)


@pytest.mark.parametrize("text", ["a: 30\nb: 70\n", '{"a": 30, "b": 70}', "weights: {a: 30, b: 70}", "b: 70\na: 30"])
def test_a_changed_file_is_put_into_force(router: Router, tmp_path: Path, text: str) -> None:
    file = WeightsFile(tmp_path / "weights.yaml", router)
    replace(file.path, text)
    file.tick()
    assert router.weights.shares == {"a": 30, "b": 70}
    assert router.weights.source == "file"
    assert file.error is None


def test_weights_set_by_hand_hold_until_the_file_changes(router: Router, tmp_path: Path) -> None:
    file = WeightsFile(tmp_path / "weights.yaml", router)
    replace(file.path, "a: 30\nb: 70")
    file.tick()
    router.set_weights({"a": 1, "b": 1}, "admin")
    file.tick()
    assert router.weights.shares == {"a": 1, "b": 1}
    replace(file.path, "a: 40\nb: 60")
    file.tick()
    assert router.weights.shares == {"a": 40, "b": 60}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a: 0\nb: 0", "all weights would be 0"),
        ("a: -5", "is not a number from 0 up"),
        ("a: many", "weight 'many'"),
        ("a: 30\nkunlum: 70", "no device group is named 'kunlum'"),
        ("- a\n- b", "no mapping"),
        ("", "no mapping"),
        ("1: 2", "no mapping"),
        ("a: [", "neither YAML nor JSON"),
        (b"\xff\xfe\x00", "neither YAML nor JSON"),
        ("!!python/object/apply:os.system ['true']", "neither YAML nor JSON"),
        ("a: 1 # " + "x" * 70000, "more than 65536 bytes"),
        ("[" * 5000, "neither YAML nor JSON"),
        ("a: &a [1, 1]\nb: [*a, *a]", "an alias, `*name`"),
        ("a: 2001-99-99", "neither YAML nor JSON"),
        ("a: " + "9" * 5000, "neither YAML nor JSON"),
        ("a: " + "9" * 400, "is not a number from 0 up"),
        ("a: [[[[1]]]]", "weight [[...]"),
        ("a: .inf", "weight inf"),
        ("a: 1\nb: 2\na: 3", "'a' stands there twice"),
        ('{"weights": {"a": 1, "a": 1}}', "'a' stands there twice"),
    ],
)
def test_a_bad_file_keeps_the_last_good_weights_and_says_so(
    router: Router, tmp_path: Path, text: str | bytes, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    file = WeightsFile(tmp_path / "weights.yaml", router)
    replace(file.path, text)
    file.tick()
    file.tick()
    assert router.weights.shares == {"a": 80, "b": 20}
    assert told in (file.error or "")
    assert sum(told in record.getMessage() for record in caplog.records) == 1
    replace(file.path, "a: 5")
    file.tick()
    assert file.error is None
    assert router.weights.shares == {"a": 5, "b": 20}


def test_a_pipe_or_a_folder_holds_nobody_up(router: Router, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):
        file = WeightsFile(path, router)
        file.tick()
        assert "it is not a file" in (file.error or "")


def test_a_file_that_is_not_there_yet_is_waited_for(router: Router, tmp_path: Path) -> None:
    file = WeightsFile(tmp_path / "weights.yaml", router)
    file.tick()
    assert file.error == "No such file or directory"
    replace(file.path, "b: 80")
    file.tick()
    assert router.weights.shares == {"a": 80, "b": 80}
    file.path.unlink()
    file.tick()
    assert file.error is not None
    assert router.weights.shares == {"a": 80, "b": 80}
