"""What a plan needs to know of a model: its numbers, and how its files are quantised."""

import json
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from sglk.backends.cpu_kernels.compiler import KernelsMissing, find_compiler
from sglk.backends.kept_kinds import GGML_NUMBERS
from sglk.backends.schemes import CPU_INT8_GROUP, LinearScheme, Quantization, on_load
from sglk.backends.sim_rates import multiplies_in_fp8
from sglk.config.groups import SIMULATED
from sglk.config.profiles import NATIVE
from sglk.config.quantization import NAMES
from sglk.config.schema import BackendConfig, ModelConfig, RuntimeConfig, ServeConfig
from sglk.config.tensor_parallel import SplitSizes, ranks_of
from sglk.errors import ConfigError, ModelLoadError
from sglk.models.chosen_scheme import choose_scheme
from sglk.models.files import ModelFiles, find_files
from sglk.models.gguf_table import read_table
from sglk.models.hf_config import read_spec
from sglk.models.numbers import spec_from_numbers
from sglk.models.part import can_be_summed, part_of_spec, split_sizes
from sglk.models.quantization_config import CheckpointQuantization, read_quantization
from sglk.models.registry import check_architecture, check_known
from sglk.models.spec import ModelSpec
from sglk.planner.dtypes import BYTES
from sglk.planner.kinds import ROWS, StoredKinds
from sglk.planner.latent import head_widths
from sglk.planner.room import IN_MAIN_MEMORY
from sglk.planner.weights import Layout, Weights, padded_vocabulary, weights_of

VLLM = "vllm"

_USUAL_GROUP = 128
"""Inputs that share a scale in most published AWQ and GPTQ checkpoints."""


@dataclass(frozen=True)
class PlannedModel:
    """One model, of which no weight is read."""

    name: str
    spec: ModelSpec
    checkpoint: CheckpointQuantization | None = None
    """How the files' linear layers are quantised; None = in full precision, or not known."""
    has_files: bool = True
    """Whether the files were looked at; else the configuration's numbers are all that is known."""
    int8_group_size: int = -1
    """Inputs that share a scale where the device rounds a model without experts to w8a8; -1 = all."""
    exact_ranks: bool = False
    """Whether ranks are to give the bits of a model in one piece."""
    fp8_activations: bool = False
    """Whether the device rounds activations in fp8 too."""
    summed: bool = False
    """Whether ranks sum whatever the model is, as simulated ones and those of other engines do."""
    rows: int = 1
    """Multiple of outputs that the device fills matrices up to."""
    launched: bool = False
    """Whether SGLang or vLLM has it, not our own engine."""
    vllm: bool = False
    """Whether that is vLLM."""
    kinds: StoredKinds | None = None
    """What the files have their matrices in, where the device keeps that; None = not known, or it does not."""

    def scheme(self, requested: str | None) -> LinearScheme | None:
        """Return the scheme that is asked for; raises ConfigError for one that is not known, or not that of the files.

        Of a model without files a checkpoint in the named layout may exist: it is taken to have the usual groups.
        """
        if requested is not None and requested not in NAMES:
            raise ConfigError(
                f"runtime.quantization={requested} is not known to the native engine; choose one of {', '.join(NAMES)}"
            )
        name = NAMES.get(requested or "")
        if not self.has_files and name is not None and name.method and name.scheme:
            return LinearScheme(name.scheme, _USUAL_GROUP, symmetric=name.method == "gptq")
        scheme = choose_scheme(requested, self.checkpoint, f"model {self.name!r}")
        return scheme if self.checkpoint else self._rounded(scheme).default

    def head(self, scheme: LinearScheme | None) -> LinearScheme | None:
        """Return the scheme of the output head beside linear layers in `scheme`, as `scheme()` returns it."""
        return None if self.checkpoint else self._rounded(scheme).head

    def _rounded(self, scheme: LinearScheme | None) -> Quantization:
        return on_load(scheme, self.int8_group_size, experts=self.spec.moe is not None)

    def weights(self, dtype: str, scheme: LinearScheme | None, ranks: int) -> Weights:
        """Return what each of `ranks` holds, with its linear layers in `scheme` and all else in `dtype`."""
        layout = Layout(
            self.kinds if self.keeps(dtype) else None,
            self.gathers(scheme, ranks),
            self.rows,
            self.launched,
            self._block_rows,
            self._left_out,
            self.vllm,
        )
        return weights_of(self.spec, dtype, scheme, ranks, layout, self.head(scheme))

    def weight_bits(self, dtype: str, scheme: LinearScheme | None) -> float:
        """Return how many bits a number of the layers takes in memory, to a tenth; scales count with their numbers."""
        kept, whole = self.weights(dtype, scheme, 1), replace(self, kinds=None).weights(dtype, None, 1)
        share = (kept.attention + kept.feed_forward) / (whole.attention + whole.feed_forward)
        return round(8 * BYTES[dtype] * share, 1)

    def gathers(self, scheme: LinearScheme | None, ranks: int) -> bool:
        """Return whether ranks bring inputs together in place of sums, as `sglk.models.split.gathers` decides."""
        if ranks == 1 or self.summed:
            return False
        part = replace(part_of_spec(self.spec, ranks), quantization=Quantization(default=scheme))
        return self.exact_ranks or not can_be_summed(part, ranks, self.fp8_activations)

    def keeps(self, dtype: str) -> bool:
        """Return whether matrices that are computed with in `dtype` stay in the bits of the files."""
        return self.kinds is not None and dtype == "fp32"

    @property
    def _block_rows(self) -> int:
        """Outputs that share scales; our own engine gives each its own."""
        return self.checkpoint.block_rows if self.launched and self.checkpoint else 1

    def _left_out(self, name: str) -> bool:
        return self.launched and self.checkpoint is not None and self.checkpoint.leaves_out(name)

    @property
    def _sizes(self) -> SplitSizes:
        sizes = split_sizes(self.spec)
        if not self.launched:
            return sizes
        latent, width = self.spec.latent, self.spec.head_dim
        return replace(
            sizes,
            vocabulary=padded_vocabulary(self.spec),
            block=self._block_rows,
            head_widths=frozenset({width}) if latent is None else head_widths(latent),
            # vLLM forgives it where projections are stacked (`_maybe_allow_fp8_block_shape_mismatch`).
            kv_width=width if latent is None and not self.vllm else 0,
        )

    def tp_sizes(self) -> list[int]:
        """Return the numbers of devices that the model can be split over."""
        return self._sizes.allowed()

    def check_split(self, runtime: RuntimeConfig) -> None:
        """Raise ConfigError where the model cannot be split over `runtime.tp_size` devices, as the engine does."""
        problem = self._sizes.problem(ranks_of(runtime), self.name)
        if problem is not None:
            raise ConfigError(problem)


def model_of(config: ServeConfig) -> PlannedModel:
    """Return the model of one replica, as its engine would load it; raises as `planned_model` does.

    Raises ModelLoadError for an architecture that only other engines have, where it is to be our own.
    """
    if config.engine.name != NATIVE:
        return replace(planned_model(config.model), summed=True, launched=True, vllm=config.engine.name == VLLM)
    here, exact = config.backend.name == IN_MAIN_MEMORY, config.runtime.enable_deterministic_inference
    packed = here and _has_kernels(config.backend)
    found = planned_model(config.model, kept=packed and config.runtime.load_format != "dummy")
    check_architecture(found.spec.architecture, f"model {config.model.name!r}: ")
    return replace(
        found,
        rows=ROWS if packed else 1,
        int8_group_size=CPU_INT8_GROUP if here else -1,
        exact_ranks=here if exact is None else exact,
        fp8_activations=not here and multiplies_in_fp8(config.chip),
        summed=config.backend.name == SIMULATED,
    )


def planning_key(config: ServeConfig) -> str:
    """Return what `model_of` depends on: replicas that have it in common are planned with one model."""
    runtime = config.runtime
    return repr(
        (
            config.model,
            config.engine.name,
            config.backend,
            config.chip,
            runtime.load_format,
            runtime.enable_deterministic_inference,
        )
    )


def _has_kernels(backend: BackendConfig) -> bool:
    """Return whether the processor will have own kernels, which are compiled when it first serves."""
    if backend.options.get("kernels") == "none":
        return False
    try:
        find_compiler()
    except KernelsMissing:
        return False
    return True


def planned_model(model: ModelConfig, *, kept: bool = False) -> PlannedModel:
    """Return what the numbers of `model` say, or its files where it has a path or no numbers; nothing is downloaded.

    `kept` = the device keeps what the files have their matrices in, so look what that is. Raises ModelLoadError where
    neither is here, or nothing is known of the architecture.
    """
    if model.path is None and model.architecture is not None:
        check_known(model.architecture, f"model {model.name!r}: ")
        spec = spec_from_numbers(model, "to plan with it")
        return PlannedModel(model.name, spec, has_files=False, kinds=_kinds_here(model) if kept else None)
    try:
        found = _of_files(model.name, files := find_files(model, "dummy"))
        return replace(found, kinds=_kinds(files)) if kept else found
    except ModelLoadError as error:
        if model.path is not None or model.hub_id is None:
            raise
        raise ModelLoadError(
            f"model {model.name!r} has no numbers, and its files are not on this machine; write model.path=FOLDER, or "
            "give model.architecture, model.hidden_size and the other numbers (`sglk models --json` shows which)"
        ) from error


def _of_files(name: str, files: ModelFiles) -> PlannedModel:
    if files.format == "safetensors":
        return PlannedModel(name, read_spec(files.path), read_quantization(files.path))
    # numpy comes with it, which nothing else here waits for.
    from sglk.models.gguf_file import GgufFile
    from sglk.models.gguf_spec import read_gguf_spec

    # GGUF is dequantised when it is loaded.
    file = GgufFile(files.path)
    for tensor, line in file.tensors.items():
        if len(line.shape) > 1:
            file.check_readable(tensor)
    return PlannedModel(name, read_gguf_spec(file))


def _kinds_here(model: ModelConfig) -> StoredKinds | None:
    """Return what the files have their matrices in, if they are on this machine."""
    try:
        return _kinds(find_files(model, "dummy"))
    except ModelLoadError:
        return None


def _kinds(files: ModelFiles) -> StoredKinds:
    if files.format == "safetensors":
        return StoredKinds(others=_one_kind(files.path))
    status = files.path.stat()
    return _kinds_of_gguf(files.path, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=8)
def _kinds_of_gguf(path: Path, changed_ns: int, size: int) -> StoredKinds:
    """Return the kinds of one state of a file: a plan asks several times, and the words before its table are many."""
    names = {number: name for name, number in GGML_NUMBERS.items()}
    lines = read_table(path, vocabulary=False).lines
    return StoredKinds({line.name.removesuffix(".weight"): names.get(line.type, "in fp32") for line in lines})


def _one_kind(folder: Path) -> str | None:
    """Return the dtype of all matrices of the first file of a folder; None where there are several."""
    kinds = {tensor["dtype"] for tensor in _first_header(folder).values() if len(tensor.get("shape", ())) > 1}
    return kinds.pop() if len(kinds) == 1 else None


def _first_header(folder: Path) -> dict[str, Any]:
    # https://huggingface.co/docs/safetensors: eight bytes say how long the JSON after them is.
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            header = file.read(int.from_bytes(file.read(8), "little"))
        try:
            return {name: each for name, each in json.loads(header).items() if name != "__metadata__"}
        except ValueError:
            # Whoever loads it says what is wrong with it.
            break
    return {}
