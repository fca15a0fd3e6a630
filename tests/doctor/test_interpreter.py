"""This Python and what it would import, in made-up folders of packages."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from sglk.backends.finding import Finding
from sglk.doctor import interpreter, packages
from sglk.doctor.machine import Machine
from tests.doctor.trees import Tree


def install(folder: Path, name: str, version: str, *headers: str, package: bool = True) -> None:
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *headers]
    (info / "METADATA").write_text("\n".join(lines) + "\n")
    if package:
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "__init__.py").write_text("")


def looking_in(tree: Tree, *folders: Path, **more: object) -> Machine:
    return replace(tree.machine(), search=[str(folder) for folder in folders], **more)


@pytest.fixture
def site(tree: Tree) -> Path:
    folder = tree.root / "site-packages"
    folder.mkdir()
    return folder


def bad(findings: Sequence[Finding]) -> list[str]:
    return [f"{finding.status}: {finding.why}" for finding in findings if finding.status != "ok"]


def test_a_python_that_sglk_is_not_made_for(tree: Tree, site: Path) -> None:
    install(site, "sglk", "1.0", "Requires-Python: >=3.12")
    machine = looking_in(tree, site, python_version="3.11.7", glibc=None)
    found = bad(list(interpreter.check_python(machine)))
    assert found == ["fail: Python 3.11.7 (python) is not in >=3.12", "warn: the C library is not glibc"]


def test_two_copies_of_one_distribution(tree: Tree, site: Path) -> None:
    user = tree.root / "user"
    install(user, "torch", "2.1.0")
    install(site, "torch", "2.13.0")
    install(user, "numpy", "2.0.0")
    install(site, "numpy", "2.0.0")
    machine = looking_in(tree, user, site, site, user_site=str(user))
    assert bad(list(interpreter.check_duplicates(machine))) == [
        f"warn: torch 2.1.0 at {user} (the user's own site-packages) hides 2.13.0 at {site}"
    ]


def test_sglk_is_named_even_where_both_copies_have_one_version(tree: Tree, site: Path) -> None:
    install(tree.root / "other", "sglk", "1.0")
    install(site, "sglk", "1.0")
    assert len(bad(list(interpreter.check_duplicates(looking_in(tree, tree.root / "other", site))))) == 1


def test_a_distribution_without_metadata_is_passed_over(tree: Tree, site: Path) -> None:
    (site / "broken-1.0.dist-info").mkdir()
    assert list(interpreter.check_duplicates(looking_in(tree, site))) == []


def test_a_folder_of_the_current_directory_that_hides_a_package(tree: Tree, site: Path) -> None:
    install(site, "torch", "2.13.0")
    (tree.root / "torch").mkdir()
    (tree.root / "torch" / "__init__.py").write_text("")
    assert list(interpreter.check_shadowing(looking_in(tree, site))) == []
    (finding,) = interpreter.check_shadowing(looking_in(tree, tree.root, site))
    assert finding.status == "fail"
    assert (
        finding.why
        == f"{tree.root}/torch/__init__.py in the current directory hides the installed {site}/torch/__init__.py"
    )


def test_modules_that_nobody_installed_hide_those_that_somebody_did(tree: Tree, site: Path) -> None:
    install(site, "sglk", "1.0")
    stray = tree.root / "stray" / "sglk" / "__init__.py"
    stray.parent.mkdir(parents=True)
    stray.write_text("")
    assert bad(list(interpreter.check_shadowing(looking_in(tree, tree.root / "stray", site)))) == [
        f"warn: {stray}, which nobody installed, hides the installed {site}/sglk/__init__.py"
    ]


def test_an_editable_install_is_hidden_by_nothing(tree: Tree, site: Path) -> None:
    install(site, "sglk", "1.0", package=False)
    install(tree.root / "checkout", "other", "1.0")
    (tree.root / "checkout" / "sglk").mkdir()
    (tree.root / "checkout" / "sglk" / "__init__.py").write_text("")
    assert list(interpreter.check_shadowing(looking_in(tree, tree.root / "checkout", site))) == []


def test_a_bare_folder_stands_in_for_a_package(tree: Tree, site: Path) -> None:
    (tree.root / "torch").mkdir()
    (finding,) = interpreter.check_shadowing(looking_in(tree, tree.root, site))
    assert finding.why.startswith(f"module 'torch' is a bare folder, {tree.root}/torch")


def test_a_checkout_is_no_shadow(tree: Tree, site: Path) -> None:
    install(tree.root, "sglk", "1.0")
    assert list(interpreter.check_shadowing(looking_in(tree, tree.root, site, tree.root))) == []


def test_start_up_hooks(tree: Tree, site: Path) -> None:
    (site / "sitecustomize.py").write_text("import os\nimport torch.cuda\n")
    (site / "quiet.pth").write_text("/some/folder\n")
    (site / "early.pth").write_text("import vendor_hook\n")
    found = list(interpreter.check_start_up_hooks(looking_in(tree, site)))
    assert [finding.status for finding in found] == ["warn", "ok"]
    assert found[0].why.startswith(f"sitecustomize {site}/sitecustomize.py imports torch in every Python process")
    assert found[1].why == f".pth file {site}/early.pth runs at every start"


REQUIREMENTS = (
    "Requires-Dist: rich>=13",
    "Requires-Dist: gone>=1",
    "Requires-Dist: optuna>=4; extra == 'tune'",
    "Requires-Dist: pandas>=2; extra == 'report'",
    "Requires-Dist: pytest; extra == 'dev'",
    "Provides-Extra: tune",
    "Provides-Extra: report",
    "Provides-Extra: dev",
)


def test_installed_versions_against_what_is_asked_for(tree: Tree, site: Path) -> None:
    install(site, "sglk", "1.0", *REQUIREMENTS)
    install(site, "rich", "12.0")
    install(site, "optuna", "3.0")
    found = list(packages.check_packages(looking_in(tree, site)))
    assert bad(found) == [
        "fail: rich 12.0 is not in >=13",
        "fail: gone is not installed",
        "warn: extra 'tune': optuna 3.0 is not in >=4",
    ]
    assert found[-1].why == "extra 'report' is not installed (no pandas)"
    assert "pip install 'sglk[report]'" in found[-1].todo


def test_sglk_that_is_not_installed(tree: Tree, site: Path) -> None:
    (finding,) = packages.check_packages(looking_in(tree, site))
    assert finding.status == "fail"


def test_ranges_that_a_plugin_declares(tree: Tree, site: Path) -> None:
    install(site, "torch", "2.9.0+xpu", package=False)
    machine = looking_in(tree, site, python_version="3.11.7")
    ranges = {
        "python": ">=3.10,<3.11",
        "torch": ">=2.9,<2.10",
        "driver": ">=5.0.21",
        "sdk": ">=5",
        "toy-ops": ">=1",
        "glibc": "any",
    }
    found = list(packages.check_ranges(machine, "toy", ranges, {"driver": "5.0.9", "sdk": "five"}))
    assert [(finding.status, finding.why) for finding in found] == [
        ("fail", "python >=3.10,<3.11; 3.11.7 is installed"),
        ("ok", "torch >=2.9,<2.10; 2.9.0+xpu is installed"),
        ("fail", "driver >=5.0.21; 5.0.9 is installed"),
        ("warn", "sdk >=5; 'five' cannot be compared with it"),
        ("fail", "toy-ops >=1, which is not here"),
        ("warn", "glibc 'any', which is no version range"),
    ]
