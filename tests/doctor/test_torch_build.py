"""What is made of what torch says about itself."""

from typing import Any

import pytest

from sglk.doctor.torch_build import build_findings

H100 = {"name": "NVIDIA H100", "architecture": "sm_90"}


def build(**more: Any) -> dict[str, Any]:
    answer = {"version": "2.13.0", "file": "/torch", "cuda": None, "hip": None, "architectures": [], "devices": []}
    return {**answer, "reason": "Torch not compiled with CUDA enabled", **more}


def said(answer: dict[str, Any], *backends: str) -> list[tuple[str, str]]:
    return [(finding.status, finding.why) for finding in build_findings(answer, backends)][1:]


def test_a_build_for_the_cpu() -> None:
    assert said(build(), "cpu") == [("ok", "cuda: not available to torch (Torch not compiled with CUDA enabled)")]
    assert said(build(), "cuda") == [("fail", "torch 2.13.0 is no build for cuda")]
    assert said(build(hip="6.4"), "cuda") == [("fail", "torch 2.13.0 is no build for cuda")]


def test_a_build_without_a_driver() -> None:
    answer = build(cuda="13.0", reason="Found no NVIDIA driver on your system.")
    assert said(answer, "cuda") == [("fail", "torch finds no device: Found no NVIDIA driver on your system.")]
    assert said(answer, "kunlun") == [("ok", "cuda: not available to torch (Found no NVIDIA driver on your system)")]


@pytest.mark.parametrize(
    ("architectures", "statuses"),
    [
        (["sm_80", "sm_90"], []),
        (["sm_90a", "compute_90"], []),
        (["sm_80", "compute_80"], []),  # the driver compiles the text for newer generations
        (["sm_70", "sm_80"], ["warn"]),
    ],
)
def test_kernels_for_the_card(architectures: list[str], statuses: list[str]) -> None:
    answer = build(cuda="13.0", reason=None, devices=[H100], architectures=architectures)
    assert [status for status, _ in said(answer, "cuda")] == statuses


def test_minor_generations_run_older_kernels_of_their_own() -> None:
    card = {"name": "L20", "architecture": "sm_89"}
    assert said(build(cuda="13.0", reason=None, devices=[card], architectures=["sm_80", "sm_86"]), "cuda") == []
