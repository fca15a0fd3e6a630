"""The kunlun backend with stand-ins for the vendor's libraries; nothing here is a verification on hardware."""

import logging
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from sglk.backends import moe_ops, quantised_linear, reference, sampling_ops
from sglk.backends.kunlun import CAPABILITIES, KunlunBackend
from sglk.backends.kunlun_presence import driver_version, missing, nodes
from sglk.backends.ops import REFERENCE
from sglk.backends.quantise import quantise_int8
from sglk.backends.quantised_moe import run_quantised_experts
from sglk.config.compose import compose
from sglk.config.schema import ChipConfig
from sglk.engine.loading import load_runner
from sglk.errors import BackendError, ConfigError
from sglk.testing.tiny import write_tiny_model
from tests.backends.on_cpu import OnCpu
from tests.backends.test_cpu_ops import close, paged_rows, randn
from tests.models.greedy import Stepper

SDK = Path(__file__).parent / "kunlun_sdk"
MODULES = ("kunlun_ops", "torch_xmlir", "xspeedgate_ops")
BF16 = torch.bfloat16

Change = Callable[[str, str], None]


class KunlunOnCpu(OnCpu, KunlunBackend):
    """The whole adapter, with tensors on the cpu."""

    api_version = 1

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.capabilities = replace(self.capabilities, host_memory=True, collectives=None)


@pytest.fixture
def sdk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Install the stand-ins in a folder, with a device node beside it."""
    folder = tmp_path / "sdk"
    shutil.copytree(SDK, folder, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/xpu0").touch()
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(KunlunBackend, "root", tmp_path)
    yield folder
    for module in MODULES:
        sys.modules.pop(module, None)


@pytest.fixture
def change(sdk: Path) -> Change:
    """Return what replaces text in a stand-in before it is imported."""

    def replace(old: str, new: str) -> None:
        file = sdk / "kunlun_ops.py"
        text = file.read_text()
        assert old in text
        file.write_text(text.replace(old, new))

    return replace


@cache
def chip(name: str = "kunlun_p800") -> ChipConfig:
    return compose("serve", [f"chip={name}"]).config.chip


# Looking for the card.


def test_without_the_sdk_one_line_names_all_that_is_missing_and_two_ways_on(tmp_path: Path) -> None:
    words = ["chip=kunlun", f"model={write_tiny_model(tmp_path)}"]
    with pytest.raises(BackendError) as caught:
        load_runner(compose("serve", words).config)
    assert str(caught.value) == (
        "kunlun: not available (no device node /dev/xpu0; no xpu-smi on the PATH; torch_xmlir is not installed in this "
        "Python); `sglk doctor chip=kunlun` lists all that is needed, backend=sim rehearses without a card"
    )


@pytest.mark.usefixtures("sdk")
def test_the_card_is_found_by_its_nodes_and_its_runtime(tmp_path: Path) -> None:
    assert missing({}, tmp_path) == []
    assert missing({"XPU_VISIBLE_DEVICES": ""}, tmp_path) == ["XPU_VISIBLE_DEVICES is empty, which hides every card"]
    for name in ("xpu10", "xpu2", "xpuctrl"):
        (tmp_path / "dev" / name).touch()
    assert [node.name for node in nodes(tmp_path)] == ["xpu0", "xpu2", "xpu10"]


def test_a_machine_with_the_tool_but_without_the_driver_is_told_so(tmp_path: Path) -> None:
    tool = tmp_path / "bin/xpu-smi"
    tool.parent.mkdir()
    tool.touch(0o755)
    assert missing({"PATH": str(tool.parent)}, tmp_path)[0] == "no device node /dev/xpu0"
    assert not any("xpu-smi" in lack for lack in missing({"PATH": str(tool.parent)}, tmp_path))


def test_a_runtime_that_does_not_load_is_named_with_its_own_words(sdk: Path) -> None:
    (sdk / "torch_xmlir.py").write_text("raise OSError('libxpurt.so.1: cannot open shared object file')")
    with pytest.raises(BackendError, match=r"not available \(torch_xmlir does not load \(OSError: libxpurt\.so\.1"):
        KunlunOnCpu()


@pytest.mark.usefixtures("sdk")
def test_what_the_device_is_called_comes_from_the_chip_and_the_software(tmp_path: Path) -> None:
    version = tmp_path / "sys/module/kunlun/version"
    version.parent.mkdir(parents=True)
    version.write_text("5.0.21\n")
    assert driver_version(tmp_path) == "5.0.21"
    info = KunlunOnCpu(chip=chip()).device_info()
    assert (info.name, info.driver, info.sdk) == ("Kunlun P800, 96 GB", "5.0.21", "torch_xmlir 2.9.0, xre 5.19")
    assert KunlunOnCpu.installed_versions() == {"driver": "5.0.21", "sdk": "2.9.0"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fast": True}, "no option 'fast'; it takes use_torch"),
        ({"use_torch_fallback": "no"}, "'no'; choose true or f"),
    ],
)
def test_options_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        KunlunBackend(**options)


@pytest.mark.usefixtures("sdk")
def test_limits_are_those_of_software_and_chip_together() -> None:
    small = KunlunOnCpu(chip=chip("kunlun")).capabilities
    assert (small.default_dtype, KunlunOnCpu(chip=chip()).capabilities.default_dtype) == ("fp16", "bf16")
    assert small.page_sizes == (128,)
    assert small.kv_cache_dtypes == {"fp16", "bf16"}
    assert CAPABILITIES.quantization == {"w8a8"}
    only_fp32 = replace(chip(), dtypes=["fp32"])
    with pytest.raises(ConfigError, match="declares dtypes fp32, of which the kunlun backend has none; name one of bf"):
        KunlunOnCpu(chip=only_fp32)


# Ops.

ATTENTION = {"head_dim": 64, "kv_heads": 2, "heads": 8, "kv_dtype": "bf16", "dtype": "bf16", "page_size": 128}
MOE = {"dtype": "bf16", "experts": 8, "top_k": 2, "hidden": 64, "width": 32}


@pytest.mark.usefixtures("sdk")
def test_every_op_of_a_dense_model_has_the_vendor_or_torch_to_run_it() -> None:
    ops = KunlunOnCpu(fallback="forbid", chip=chip()).ops
    chosen = {
        ops.select(op, **traits).choice.provider
        for op, traits in (
            (reference.embedding, {}),
            (reference.linear, {}),
            (reference.rms_norm, {"dtype": "bf16"}),
            (reference.add_rms_norm, {"dtype": "bf16"}),
            (reference.rope, {"dtype": "bf16", "head_dim": 64}),
            (reference.silu_and_mul, {"dtype": "bf16", "size": 128}),
            (reference.store_kv, ATTENTION),
            (reference.attention_prefill, ATTENTION | {"window": 0}),
            (reference.attention_decode, ATTENTION | {"window": 0}),
            (sampling_ops.greedy, {}),
            (sampling_ops.sample, {}),
        )
    }
    assert chosen == {"kunlun_ops", "xspeedgate_ops", "torch_xmlir"}


@pytest.mark.usefixtures("sdk")
def test_blocks_are_those_of_the_reference() -> None:
    ops = KunlunOnCpu(fallback="forbid").ops
    x, residual, weight = randn(5, 3, 64, dtype=BF16), randn(5, 64, dtype=BF16, seed=1), randn(64, dtype=BF16, seed=2)
    norm = ops.select(reference.rms_norm, dtype="bf16")
    close(norm(x[:, :2], weight, 1e-5), reference.rms_norm.reference(x[:, :2], weight, 1e-5))
    add = ops.select(reference.add_rms_norm, dtype="bf16")
    expected = reference.add_rms_norm.reference(x[:, 0], residual, weight, 1e-5)
    for got, want in zip(add(x[:, 0], residual.clone(), weight, 1e-5), expected, strict=True):
        close(got, want)
    activate = ops.select(reference.silu_and_mul, dtype="bf16", size=32)
    close(activate(x[:, 0]), reference.silu_and_mul.reference(x[:, 0]))
    angles = randn(5, 32, seed=3).repeat(1, 2)
    cos, sin = angles.cos().to(BF16), angles.sin().to(BF16)
    rope = ops.select(reference.rope, dtype="bf16", head_dim=64)
    close(rope(x[:, :2], cos, sin), reference.rope.reference(x[:, :2], cos, sin))


@pytest.mark.usefixtures("sdk")
def test_attention_over_head_major_pages() -> None:
    ops = KunlunOnCpu(fallback="forbid").ops
    kv_lens = [1, 150, 300]
    for op, lens in ((reference.attention_prefill, [1, 20, 300]), (reference.attention_decode, [1, 1, 1])):
        rows, slots = paged_rows(lens, kv_lens, 128)
        pools = [torch.full((slots // 128, 2, 128, 64), torch.nan, dtype=BF16) for _ in range(2)]
        written = torch.cat([torch.from_numpy(rows.slots_BL[row, :length]) for row, length in enumerate(kv_lens)])
        keys, values = (randn(len(written), 2, 64, dtype=BF16, seed=seed) for seed in (1, 2))
        ops.select(reference.store_kv, **ATTENTION)(keys, values, *pools, written)
        q = randn(sum(lens), 8, 64, dtype=BF16)
        got = ops.select(op, **ATTENTION, window=0)(q, *pools, rows, 0.125)
        # Slots that nobody wrote are not a number, and stay out of it on both roads.
        close(got, op.reference(q, *pools, rows, 0.125))


@pytest.mark.usefixtures("sdk")
def test_experts_and_their_routing() -> None:
    ops = KunlunOnCpu(fallback="forbid", chip=chip()).ops
    x, logits = randn(9, 64, dtype=BF16), randn(9, 8, seed=1)
    gate_up, down = randn(8, 64, 64, dtype=BF16, seed=2) / 8, randn(8, 64, 32, dtype=BF16, seed=3) / 8
    weights, ids = ops.select(moe_ops.route, **MOE, renormalise=True)(logits, 2, True)
    wanted, wanted_ids = moe_ops.route.reference(logits, 2, True)
    assert torch.equal(ids, wanted_ids)
    close(weights, wanted)
    grouped = ops.select(moe_ops.route_grouped, **MOE, renormalise=True, scoring="sigmoid")
    for bias in (None, randn(8, seed=4)):
        arguments: tuple[Any, ...] = (logits, bias, 2, 4, 2, "sigmoid", True)
        for got, want in zip(grouped(*arguments), moe_ops.route_grouped.reference(*arguments), strict=True):
            close(got.float(), want.float())
    run = ops.select(moe_ops.run_experts, **MOE)
    close(run(x, gate_up, down, weights, ids), moe_ops.run_experts.reference(x, gate_up, down, weights, ids))
    packed = [quantise_int8(part.flatten(0, 1), part.shape[2]) for part in (gate_up, down)]
    run_int8 = ops.select(run_quantised_experts, **MOE, scheme="w8a8", group_size=-1)
    expected = run_quantised_experts.reference(x, *packed, weights, ids, 8, "w8a8")
    close(run_int8(x, *packed, weights, ids, 8, "w8a8"), expected)


@pytest.mark.usefixtures("sdk")
def test_int8_products_and_cut_distributions() -> None:
    ops = KunlunOnCpu(fallback="forbid").ops
    linear = ops.select(quantised_linear.linear_w8a8, dtype="bf16", group_size=-1)
    weight, x = quantise_int8(randn(48, 64) / 8, 64), randn(5, 64, dtype=BF16, seed=1)
    x[2] = 0
    for bias in (None, randn(48, dtype=BF16, seed=2)):
        close(linear(x, weight, bias), quantised_linear.linear_w8a8.reference(x, weight, bias))
    rows = 200
    arguments = (
        randn(rows, 50, seed=3),
        torch.full((rows,), 0.8),
        torch.arange(rows) % 7,
        torch.linspace(0.3, 1.0, rows),
        torch.linspace(0.0, 0.2, rows),
        torch.rand(rows, generator=torch.Generator().manual_seed(0)),
    )
    assert torch.equal(ops.select(sampling_ops.sample)(*arguments), sampling_ops.sample.reference(*arguments))


@pytest.mark.parametrize(
    ("op", "traits", "reason"),
    [
        (reference.attention_decode, ATTENTION | {"window": 24}, "window in {0}"),
        (reference.attention_prefill, ATTENTION | {"window": 0, "head_dim": 80}, "head_dim in {64, 128, 192, 256}"),
        (reference.store_kv, ATTENTION | {"dtype": "fp32"}, "dtype in {fp16, bf16}"),
        (reference.silu_and_mul, {"dtype": "bf16", "size": 6}, "size % 4 == 0"),
        (moe_ops.run_experts, MOE | {"experts": 6}, "experts % 4 == 0"),
        (moe_ops.run_experts, MOE | {"experts": 896}, "experts <= 512"),
        (moe_ops.route, MOE | {"renormalise": False}, "renormalise in {True}"),
        (quantised_linear.linear_w8a8, {"dtype": "bf16", "group_size": 128}, "group_size in {-1}"),
    ],
)
@pytest.mark.usefixtures("sdk")
def test_a_shape_beyond_the_declared_limits_runs_the_reference(op: Any, traits: dict[str, Any], reason: str) -> None:
    choice = KunlunOnCpu(chip=chip()).ops.select(op, **traits).choice
    assert (choice.provider, choice.reason) == (REFERENCE, f"kunlun_ops: {reason}")


CHANGES = [
    (
        "def swiglu(x, y, limit=None):",
        "def swish_glu(x, y):",
        "kunlun_ops.swiglu is not in the installed library",
    ),
    (
        "def swiglu(x, y, limit=None):",
        "def swiglu(x, out, limit=None):",
        "kunlun_ops.swiglu has no parameter y; it takes x, out, limit",
    ),
    (
        "def swiglu(x, y, limit=None):",
        "def swiglu(x, y, table, limit=None):",
        "kunlun_ops.swiglu wants table, of which sglk does not know what it means",
    ),
    (
        '"""Stands in for the vendor\'s op library',
        'raise OSError("undefined symbol: xpu_launch")\n"""Stands',
        "kunlun_ops does not load (undefined symbol: xpu_launch)",
    ),
]


@pytest.mark.parametrize(("old", "new", "reason"), CHANGES)
def test_a_function_that_is_missing_or_called_otherwise_loses_the_op_with_the_reason(
    change: Change, old: str, new: str, reason: str
) -> None:
    change(old, new)
    bound = KunlunOnCpu().ops.select(reference.silu_and_mul, dtype="bf16", size=32)
    assert (bound.choice.provider, bound.choice.reason) == (REFERENCE, f"kunlun_ops: {reason}")
    x = randn(3, 64, dtype=BF16)
    assert torch.equal(bound(x), reference.silu_and_mul.reference(x))
    (finding,) = (each for each in KunlunOnCpu.diagnose() if each.check == "op silu_and_mul")
    assert (finding.status, finding.why) == ("warn", reason)


def test_without_torch_as_a_fallback_a_missing_function_is_an_error(change: Change) -> None:
    change("def swiglu(x, y, limit=None):", "def swish_glu(x, y):")
    ops = KunlunOnCpu(use_torch_fallback=False, fallback="allow").ops
    with pytest.raises(BackendError, match=r"op 'silu_and_mul' for .*kunlun_ops\.swiglu is not in the installed"):
        ops.select(reference.silu_and_mul, dtype="bf16", size=32)


def test_positional_functions_are_counted(change: Change) -> None:
    change(
        "def reshape_and_cache(key, value, key_cache, value_cache, slot_mapping, ", "def reshape_and_cache(key, value, "
    )
    change("k_max=None, v_max=None, quant_mode=0", "cache")
    choice = KunlunOnCpu().ops.select(reference.store_kv, **ATTENTION).choice
    assert choice.reason == "kunlun_ops: kunlun_ops.reshape_and_cache takes 3 arguments, 5 were to be given"


def test_the_other_spelling_of_a_version_is_known(change: Change) -> None:
    change("def rmsnorm(x, weight, output, eps, ", "def rmsnorm(x, weight, out, epsilon, ")
    change("assert x.is_contiguous()", "output, eps = out, epsilon")
    change(
        "moe_sigmoid_group_topk_norm(x, topk_index, norm_score, block_static,",
        "moe_sigmoid_group_topk_norm(x, topk_index, norm_score, block_statistic,",
    )
    change("assert block_static.shape == (12, x.shape[1])", "assert block_statistic.shape == (12, x.shape[1] + 1)")
    ops = KunlunOnCpu(fallback="forbid").ops
    x, weight = randn(5, 64, dtype=BF16), randn(64, dtype=BF16, seed=2)
    close(ops.select(reference.rms_norm, dtype="bf16")(x, weight, 1e-5), reference.rms_norm.reference(x, weight, 1e-5))
    arguments: tuple[Any, ...] = (randn(9, 8), None, 2, 4, 2, "sigmoid", True)
    grouped = ops.select(moe_ops.route_grouped, **MOE, renormalise=True, scoring="sigmoid")
    assert torch.equal(grouped(*arguments)[1], moe_ops.route_grouped.reference(*arguments)[1])


def test_a_function_that_hides_its_signature_is_trusted(change: Change, sdk: Path) -> None:
    with (sdk / "kunlun_ops.py").open("a") as file:
        file.write("\n\n_swiglu = swiglu\n\n\ndef swiglu(*args, **keywords):\n    return _swiglu(*args, **keywords)\n")
    bound = KunlunOnCpu(fallback="forbid").ops.select(reference.silu_and_mul, dtype="bf16", size=32)
    x = randn(3, 64, dtype=BF16)
    close(bound(x), reference.silu_and_mul.reference(x))


@pytest.mark.usefixtures("sdk")
def test_the_doctor_gets_one_finding_for_each_op() -> None:
    findings = list(KunlunOnCpu.diagnose())
    checks = [finding.check for finding in findings]
    assert len(checks) == len(set(checks))
    assert "op route_grouped" in checks
    assert {finding.status for finding in findings} == {"ok"}


@pytest.mark.usefixtures("sdk")
def test_the_start_shows_the_environment_of_the_libraries(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("XMLIR_ENABLE_FAST_FC", "1")
    with caplog.at_level(logging.INFO):
        KunlunOnCpu()
    assert "environment of the libraries: XMLIR_ENABLE_FAST_FC=1" in caplog.text


# The whole of it.

SHAPE: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 512,
}


@pytest.mark.parametrize(
    ("architecture", "more", "quantization", "used"),
    [
        ("LlamaForCausalLM", {}, "null", {"prefill_attention", "speculative_attention", "reshape_and_cache", "swiglu"}),
        ("Qwen3MoeForCausalLM", {"num_experts": 8}, "null", {"moe_softmax_topk_norm", "moe_pre_sorted", "moe_post"}),
        ("LlamaForCausalLM", {}, "w8a8", {"quant2d", "matmul"}),
    ],
)
@pytest.mark.usefixtures("sdk")
def test_a_model_answers_as_it_does_by_the_reference(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    architecture: str,
    more: dict[str, Any],
    quantization: str,
    used: set[str],
) -> None:
    class ByReference(KunlunOnCpu):
        """The same device, without any of its ops."""

        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self.ops = type(self.ops)("allow")

    offers = {"kunlun_on_cpu": KunlunOnCpu, "by_reference": ByReference}
    monkeypatch.setattr("sglk.plugins.claims._registered", offers)
    folder = write_tiny_model(tmp_path / "model", architecture=architecture, **SHAPE | more)
    answers = greedy(folder, "kunlun_on_cpu", quantization)
    called = set(sys.modules["kunlun_ops"].calls)
    assert used | {"rmsnorm"} <= called
    sys.modules["kunlun_ops"].calls.clear()
    assert answers == greedy(folder, "by_reference", quantization)
    assert sys.modules["kunlun_ops"].calls == []


def test_sums_go_through_what_the_runtime_has_registered_as_xccl(sdk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def create(*arguments: Any) -> str:
        made.append(arguments)
        return "group"

    plugin = torch.distributed.Backend._BackendPlugin(create, False)  # type: ignore[attr-defined]
    monkeypatch.setitem(torch.distributed.Backend._plugins, "XCCL", plugin)  # type: ignore[attr-defined]
    backend = KunlunOnCpu()
    assert backend.process_group("store", 1, 2, timedelta(seconds=5)) == "group"  # type: ignore[arg-type]
    assert made == [("store", 1, 2, timedelta(seconds=5))]


@pytest.mark.usefixtures("sdk")
def test_a_torch_without_collectives_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ProcessGroupXCCL", "ProcessGroupNCCL"):
        monkeypatch.delattr(torch.distributed, name, raising=False)
    with pytest.raises(BackendError, match=r"has no xccl to add over several cards with; set runtime.tp_size=1, or"):
        KunlunOnCpu().process_group(None, 0, 2, timedelta(seconds=5))  # type: ignore[arg-type]


def greedy(folder: Path, backend: str, quantization: str) -> list[list[int]]:
    """Return what two requests come to that prefill in chunks beside each other and decode together."""
    words = [f"model={folder}", f"backend.name={backend}", "chip=kunlun_p800", "profiles=none", "runtime.page_size=128"]
    runner, _ = load_runner(compose("serve", [*words, f"runtime.quantization={quantization}"]).config)
    stepper = Stepper(runner, page_size=128, num_pages=8)  # type: ignore[arg-type]
    requests = [stepper.add(range(3, 250)), stepper.add(range(100, 141))]
    for request in requests:
        stepper.prefill(request, 128)
    for _ in range(10):
        stepper.step(decodes=requests)
    return [stepper.answer(request) for request in requests]
