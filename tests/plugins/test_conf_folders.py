"""Configuration that plugins bring."""

import re
import shutil
import sys
from pathlib import Path

import pytest

from sglk.config.catalogue import chips
from sglk.config.compose import compose
from sglk.errors import ConfigError
from tests.plugins.distributions import install, install_conf

CHIP = "# @package _global_\nchip: {{name: {0}, title: {1}, vendor: Toys, backend: toy}}\n"


def test_a_plugin_brings_configuration_but_replaces_none(site: Path) -> None:
    install_conf(site, "toy", {"chip/toy.yaml": CHIP.format("toy", "Toy"), "chip/cpu.yaml": CHIP.format("cpu", "Mine")})
    composed = compose("serve", ["chip=toy", "runtime.dtype=auto"])
    assert (composed.config.chip.title, composed.config.backend.name) == ("Toy", "toy")
    assert compose("serve").config.chip.title == "CPU of this machine"


@pytest.mark.parametrize(
    ("value", "cause"),
    [
        ("dummy_bare", "it promises a `conf` folder in package 'dummy_bare', which has none; reinstall or uninstall"),
        ("dummy_gone", "it promises a `conf` folder in package 'dummy_gone', which has none"),
        ("dummy_bare.below", "it promises a `conf` folder in package 'dummy_bare.below', which has none"),
        ("dummy bare", "its entry point 'dummy bare' is not of the form package"),
    ],
)
def test_a_plugin_without_its_conf_folder_is_named_and_stops_nobody(site: Path, value: str, cause: str) -> None:
    install(site, "bare", "raise RuntimeError('never imported')", f"[sglk.conf]\ntoy = {value}\n")
    install_conf(site, "sound", {"chip/sound.yaml": CHIP.format("sound", "Sound")})
    composed = compose("serve", ["chip=sound"])
    (warning,) = composed.warnings
    assert warning.startswith(f"plugin 'toy' (dummy-bare 1.2 at {site}) brings no configuration: {cause}")
    with pytest.raises(ConfigError, match=r"chip=toy is unknown.*plugin 'toy' .dummy-bare 1.2 at .* brings no config"):
        compose("serve", ["chip=toy"])


def test_a_chip_that_is_not_found_says_what_may_hide_it(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = re.escape(f"; one of a plugin needs the plugin's package in {sys.prefix}")
    with pytest.raises(ConfigError, match=rf"^chip=zebra is unknown; `sglk chips` lists all{here}$"):
        compose("serve", ["chip=zebra"])
    install_conf(site, "zoo", {"chip/zebra.yaml": CHIP.format("zebra", "Zebra")})
    assert compose("serve", ["chip=zebra"]).config.chip.name == "zebra"
    monkeypatch.setenv("SGLK_PLUGINS", "cat")
    with pytest.raises(ConfigError, match=r"plugin 'zoo' .dummy-zoo 1.2 at .*: SGLK_PLUGINS='cat' names neither 'zoo'"):
        compose("serve", ["chip=zebra"])


def test_an_archive_brings_no_configuration_and_is_named(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = tmp_path / "packed"
    install_conf(packed, "zipped", {"chip/toy.yaml": CHIP.format("toy", "Toy")})
    archive = shutil.make_archive(str(tmp_path / "plugin"), "zip", packed)
    monkeypatch.syspath_prepend(archive)
    (warning,) = compose("serve").warnings
    assert f"its package lies in '{archive}', of which no files are read; `pip install` 'dummy-zipped'" in warning


def test_a_folder_inside_of_a_package_is_found_without_an_import(site: Path) -> None:
    install(site, "deep", "raise RuntimeError('never imported')", "[sglk.conf]\ntoy = dummy_deep.data\n")
    folder = site / "dummy_deep" / "data" / "conf" / "chip"
    folder.mkdir(parents=True)
    (folder / "toy.yaml").write_text(CHIP.format("toy", "Deep"))
    assert compose("serve", ["chip=toy"]).config.chip.title == "Deep"


def test_a_file_of_two_plugins_is_refused_with_both_and_hides_no_other(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_conf(site, "one", {"chip/toy.yaml": CHIP.format("toy", "One"), "chip/own.yaml": CHIP.format("own", "Own")})
    install_conf(site, "two", {"chip/toy.yaml": CHIP.format("toy", "Two")})
    clash = (
        f"dummy-one 1.2 at {site} and dummy-two 1.2 at {site} both bring chip/toy.yaml; uninstall dummy-one or dummy"
    )
    with pytest.raises(ConfigError) as caught:
        compose("serve", ["chip=toy"])
    assert clash in str(caught.value)
    assert compose("serve", ["chip=own"]).config.chip.title == "Own"
    listing = chips()
    assert [problem for problem in listing.problems if clash in problem]
    assert {"own", "cpu"} <= {chip.config.name for chip in listing.entries}
    (tmp_path / "mine" / "chip").mkdir(parents=True)
    (tmp_path / "mine" / "chip" / "toy.yaml").write_text(CHIP.format("toy", "Mine"))
    assert compose("serve", ["chip=toy"], config_dir=tmp_path / "mine").config.chip.title == "Mine"
    monkeypatch.setenv("SGLK_PLUGINS", "dummy-two")
    composed = compose("serve", ["chip=toy"])
    assert (composed.config.chip.title, composed.warnings) == ("Two", [])
    with pytest.raises(ConfigError, match="chip=own is unknown"):
        compose("serve", ["chip=own"])


def test_two_entry_points_to_one_folder_are_no_clash(site: Path) -> None:
    install_conf(site, "toy", {"chip/toy.yaml": CHIP.format("toy", "Toy")})
    metadata = site / "dummy_toy-1.2.dist-info" / "entry_points.txt"
    metadata.write_text("[sglk.conf]\na = dummy_toy\nb = dummy_toy\n")
    assert compose("serve", ["chip=toy"]).config.chip.title == "Toy"
