"""Every file of a composition is read once."""

from collections import Counter

import pytest
from hydra.plugins.config_source import ConfigResult

from sglk.config.compose import compose
from sglk.config.file_source import FileSource


def test_two_passes_over_the_defaults_list_read_each_file_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: Counter[str] = Counter()
    load = FileSource.load_config

    def counting(source: FileSource, config_path: str) -> ConfigResult:
        read[config_path] += 1
        return load(source, config_path)

    monkeypatch.setattr(FileSource, "load_config", counting)
    # Its chip has a backend with a file of its own, so that the list is computed again.
    composed = compose("plan", ["chip=kunlun", "model=qwen32b"])
    assert composed.choices["backend"] == "kunlun"
    assert read["chip/kunlun"]
    assert max(read.values()) == 1
