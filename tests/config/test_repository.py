"""Every file of a composition is read once."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from sglk.config.compose import compose


def test_two_passes_over_the_defaults_list_read_each_file_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: Counter[str] = Counter()
    load = OmegaConf.load

    def counting(file: Any) -> object:
        read[str(getattr(file, "name", file))] += not isinstance(file, Path)
        return load(file)

    monkeypatch.setattr(OmegaConf, "load", counting)
    # Its chip has a backend with a file of its own, so that the list is computed again.
    composed = compose("plan", ["chip=kunlun", "model=qwen32b"])
    assert composed.choices["backend"] == "kunlun"
    assert any(name.endswith("chip/kunlun.yaml") for name in read)
    assert max(read.values()) == 1
