"""What is known of a model before its weights are read: spec and tokenizer. Needs no torch."""

import logging
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from sglk.config.schema import ModelConfig
from sglk.errors import ModelLoadError
from sglk.models.dummy_tokenizer import dummy_tokenizer
from sglk.models.files import ModelFiles, find_files
from sglk.models.gguf_file import GgufFile
from sglk.models.gguf_spec import read_gguf_spec
from sglk.models.gguf_tokenizer import read_gguf_tokenizer
from sglk.models.hf_config import read_spec
from sglk.models.numbers import spec_from_numbers
from sglk.models.quantization_config import CheckpointQuantization, read_quantization
from sglk.models.registry import check_architecture
from sglk.models.spec import ModelSpec
from sglk.models.tokenizer import Tokenizer, read_tokenizer

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ModelDescription:
    """One model's architecture and vocabulary, and where its weights are."""

    spec: ModelSpec
    tokenizer: Tokenizer
    weights: Path | GgufFile | None
    """Folder of safetensors, open GGUF file, or None for random weights."""
    quantization: CheckpointQuantization | None = None
    """How the files' linear layers are quantised; None = full precision, or GGUF, which is read in full precision."""


def describe_model(model: ModelConfig, load_format: str = "auto") -> ModelDescription:
    """Return the description of `model`, from its files or, for `load_format=dummy`, from its numbers if need be.

    Raises ModelLoadError where files are missing, damaged or contradictory, and, before anything is downloaded, where
    no class builds the architecture.
    """
    if model.architecture is not None and model.path is None:
        check_architecture(model.architecture, f"model {model.name!r}: ")
    files = find_files(model, load_format) if load_format != "dummy" else _files_at_hand(model)
    if files is None:
        spec = spec_from_numbers(model)
        return _agree(spec, dummy_tokenizer(spec.vocab_size), None)
    quantization = None
    if files.format == "gguf":
        gguf = GgufFile(files.path)
        spec, tokenizer = read_gguf_spec(gguf), read_gguf_tokenizer(gguf)
        # As Python objects it takes as much memory as the tokenizer itself, while the weights come.
        gguf.forget_metadata("tokenizer.")
        weights: Path | GgufFile = gguf
    else:
        spec = read_spec(files.path)
        check_architecture(spec.architecture)
        tokenizer = _folder_tokenizer(files.path, spec, load_format)
        weights, quantization = files.path, read_quantization(files.path)
    _compare_numbers(model, spec, files.path)
    description = _agree(spec, tokenizer, None if load_format == "dummy" else weights)
    return replace(description, quantization=quantization)


def _files_at_hand(model: ModelConfig) -> ModelFiles | None:
    """Return the files if this machine has them; a path that the user names must exist all the same."""
    try:
        return find_files(model, "dummy")
    except ModelLoadError:
        if model.path is not None:
            raise
        return None


def _folder_tokenizer(folder: Path, spec: ModelSpec, load_format: str) -> Tokenizer:
    if load_format == "dummy" and not (folder / "tokenizer.json").exists():
        return dummy_tokenizer(spec.vocab_size)
    return read_tokenizer(folder)


def _compare_numbers(model: ModelConfig, spec: ModelSpec, path: Path) -> None:
    """Warn where the configuration plans with other numbers than the files hold."""
    for key, planned in asdict(model).items():
        found = getattr(spec, key, getattr(spec.moe, key, None))
        if isinstance(planned, int) and not isinstance(planned, bool) and found is not None and planned != found:
            logger.warning("model.%s is %s, but %s says %s; the file's value is used", key, planned, path, found)


def _agree(spec: ModelSpec, tokenizer: Tokenizer, weights: Path | GgufFile | None) -> ModelDescription:
    """Give spec and tokenizer the same special tokens, whichever of their files named them."""
    if tokenizer.vocab_size > spec.vocab_size:
        logger.warning(
            "the tokenizer has %d tokens, the model only %d: texts with the others cannot be computed",
            tokenizer.vocab_size,
            spec.vocab_size,
        )
    eos = spec.eos_token_ids | tokenizer.eos_token_ids
    bos = tokenizer.bos_token_id if spec.bos_token_id is None else spec.bos_token_id
    tokenizer.eos_token_ids = eos
    return ModelDescription(replace(spec, eos_token_ids=eos, bos_token_id=bos), tokenizer, weights)
