"""Nothing above a backend knows which chip it runs on: the name of a chip's software stands in its own files only."""

from pathlib import Path

import sglk

ROOT = Path(sglk.__file__).parents[1]

TABLES = {"sglk/plugins/claims.py", "sglk/backends/vendors.py"}
"""Where names are data: which module drives a backend, and how a vendor's cards show on a machine."""


def places(word: str) -> set[str]:
    files = (file for folder in ("sglk", "tuner", "reports") for file in (ROOT / folder).rglob("*") if file.is_file())
    texts = {file.relative_to(ROOT).as_posix(): file for file in files if "__pycache__" not in file.parts}
    return {name for name, file in texts.items() if word in file.read_text(encoding="utf-8", errors="ignore").lower()}


def test_kunlun_is_named_in_its_own_files_and_in_tables_of_names_only() -> None:
    found = places("kunlun")
    own = {name for name in found if name.startswith("sglk/backends/kunlun")}
    assert found == own | TABLES


def test_the_example_plugin_is_known_to_no_file_of_sglk() -> None:
    assert not places("sglk_plugin_demo") | places("sglk-plugin-demo")
