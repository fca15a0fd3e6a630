"""One name, one backend: offers that compete, offers that are not allowed, offers from code."""

from pathlib import Path

import pytest

from sglk import plugins
from sglk.config.compose import compose
from sglk.errors import BackendError, ConfigError
from tests.plugins.distributions import BACKEND, install, install_backend, write_metadata


def refusal(name: str) -> str:
    with pytest.raises(BackendError) as caught:
        plugins.load_backend(name)
    return str(caught.value)


def test_two_distributions_with_one_name_are_refused_until_one_is_left_out(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_backend(site, "twin")
    # The same module: one distribution has overwritten the other's files, and nobody knows which is there.
    write_metadata(site, "other", "[sglk.backends]\ntwin = dummy_twin:Backend\n")
    install_backend(site, "sound")
    message = refusal("twin")
    assert f"dummy-other 1.2 at {site} and dummy-twin 1.2 at {site} both offer a backend 'twin'" in message
    assert "uninstall dummy-other or dummy-twin, or leave it out of SGLK_PLUGINS" in message
    assert plugins.load_backend("sound")
    monkeypatch.setenv("SGLK_PLUGINS", "Dummy_Twin")
    assert plugins.load_backend("twin").__module__ == "dummy_twin"


def test_a_distribution_that_offers_a_name_twice_is_refused(site: Path) -> None:
    entries = "[sglk.backends]\ntwin = dummy_twin:Backend\ntwin = dummy_twin:Other\n"
    install(site, "twin", f"{BACKEND}\nOther = Backend", entries)
    assert "both offer a backend 'twin'; uninstall dummy-twin" in refusal("twin")


def test_two_versions_left_by_an_interrupted_upgrade_are_refused(site: Path) -> None:
    install_backend(site, "toy", version="1.2")
    install_backend(site, "toy", version="1.3")
    assert f"dummy-toy 1.2 at {site} and dummy-toy 1.3 at {site} both offer a backend 'toy'" in refusal("toy")


def test_of_two_copies_on_the_path_the_first_counts(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_backend(site, "toy")
    install_backend(tmp_path / "user", "toy", version="2.0")
    # Python imports from the first place of the path; a folder that the path has twice is one place.
    for folder in (tmp_path / "user", site, tmp_path / "user"):
        monkeypatch.syspath_prepend(folder)
    assert plugins.load_backend("toy")
    with pytest.raises(BackendError, match=r"found .*toy \(dummy-toy 2\.0 at [^)]*user\); usual causes"):
        plugins.load_backend("no_such_thing")


def test_a_plugin_with_the_name_of_one_of_sglk_is_refused_together_with_it(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_backend(site, "cpu")
    assert f"built-in and dummy-cpu 1.2 at {site} both offer a backend 'cpu'" in refusal("cpu")
    monkeypatch.setenv("SGLK_PLUGINS", "")
    assert plugins.load_backend("cpu").__module__ == "sglk.backends.cpu"


def test_what_is_not_on_the_list_is_not_imported(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_backend(site, "kept")
    install_backend(site, "left", "raise AssertionError('imported')")
    monkeypatch.setenv("SGLK_PLUGINS", " kept, dummy-kep ,cpu")
    assert plugins.load_backend("kept")
    assert "SGLK_PLUGINS=' kept, dummy-kep ,cpu' names neither 'left' nor 'dummy-left'; add one of them" in refusal(
        "left"
    )
    warning = "SGLK_PLUGINS names 'dummy-kep', which no plugin or distribution is called; did you mean 'dummy-kept'?"
    assert plugins.plugin_warnings() == [warning]
    assert compose("serve").warnings == [warning]
    with pytest.raises(ConfigError, match=r"no plugin drives backend 'nobody'.*did you mean 'dummy-kept'"):
        compose("serve", ["backend=nobody"])


@pytest.mark.parametrize(
    ("entry", "name", "cause"),
    [
        ("toy = dummy_toy.Backend", "toy", "entry point 'dummy_toy.Backend' is not of the form module:class"),
        ("toy = dummy_toy:", "toy", "entry point 'dummy_toy:' is not of the form module:class"),
        ("toy = dummy toy:Backend", "toy", "'dummy toy:Backend' is not of the form"),
        ("auto = dummy_toy:Backend", "auto", "no plugin can be called 'auto': it means the backend that the chip"),
        ("to:y = dummy_toy:Backend", "to:y", "'to:y' is no name for a plugin"),
    ],
)
def test_an_entry_point_that_leads_nowhere_is_refused(site: Path, entry: str, name: str, cause: str) -> None:
    install(site, "toy", BACKEND, f"[sglk.backends]\n{entry}\n")
    message = refusal(name)
    assert f"(dummy-toy 1.2 at {site}) is refused: " in message
    assert cause in message


def test_metadata_that_cannot_be_read_hides_no_other_plugin(site: Path) -> None:
    install(site, "torn", BACKEND, "[sglk.backends]\nthis line has no sign of equality\n")
    (write_metadata(site, "odd", "") / "entry_points.txt").write_bytes(b"[sglk.backends]\n\xff = x:y\n")
    (write_metadata(site, "nameless", "[sglk.backends]\nnameless = dummy_toy:Backend\n") / "METADATA").unlink()
    (write_metadata(site, "stranger", "") / "entry_points.txt").write_text("[other]\nno sign of equality\n")
    install_backend(site, "toy")
    assert plugins.load_backend("toy")
    assert plugins.load_backend("nameless")
    message = refusal("unknown")
    assert f"? (dummy-torn 1.2 at {site})" in message
    assert f"nameless (a distribution without metadata of unknown version at {site})" in message


def test_a_backend_registers_from_code(site: Path) -> None:
    def factory() -> object:
        return object()

    plugins.register_backend("inline", factory)
    plugins.register_backend("inline", factory)
    assert plugins.load_backend("inline") is factory
    assert "inline" in plugins.backend_names()
    with pytest.raises(BackendError, match="is refused: it made <object object at"):
        plugins.create_backend("inline")
    for name, taken in (("inline", object), ("cpu", object)):
        with pytest.raises(BackendError, match="registered already"):
            plugins.register_backend(name, taken)
    with pytest.raises(BackendError, match="'in line' is no name"):
        plugins.register_backend("in line", factory)
    with pytest.raises(BackendError, match="no DeviceBackend class"):
        plugins.register_backend("nothing", None)  # type: ignore[arg-type]


def test_code_and_a_distribution_with_one_name_are_refused(site: Path) -> None:
    install_backend(site, "toy")
    plugins.register_backend("toy", lambda **_: None)
    assert f"register_backend() and dummy-toy 1.2 at {site} both offer a backend 'toy'" in refusal("toy")


def test_auto_takes_the_backend_of_the_chip_and_no_other(site: Path) -> None:
    install_backend(site, "broken", "raise OSError('driver is gone')")
    config = compose("serve", ["chip.backend=broken"]).config
    assert config.backend.name == "broken"
    assert "OSError: driver is gone" in refusal(config.backend.name)
