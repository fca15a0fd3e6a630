"""Weights of a Hugging Face folder: one safetensors file, or several with an index."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from sglk.backends.kept_kinds import FLOAT_BITS
from sglk.errors import ModelLoadError
from sglk.models.fields import read_json

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


class SafetensorsWeights:
    """A WeightSource over the safetensors files of a folder.

    All files are opened and checked against the index at once, so that a missing shard, a truncated one or a tensor
    that the index promises and no shard has is a ModelLoadError before anything is loaded.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        promised = _read_index(folder)
        files = sorted(set(promised.values())) if promised else _files_without_index(folder)
        self._file_of: dict[str, Any] = {}
        stored_in: dict[str, str] = {}
        for file_name in files:
            file = _open(folder / file_name)
            for name in file.keys():  # noqa: SIM118 - not a mapping
                if promised and name in promised and promised[name] != file_name:
                    continue
                self._file_of[name], stored_in[name] = file, file_name
        for name, file_name in promised.items():
            if stored_in.get(name) != file_name:
                raise ModelLoadError(f"{folder / INDEX} names tensor {name!r} in {file_name}, which does not hold it")

    def __str__(self) -> str:
        return str(self._folder)

    def names(self) -> Iterable[str]:
        """Return the names of all tensors."""
        return self._file_of.keys()

    def get(self, name: str) -> torch.Tensor:
        """Return one tensor as it is stored."""
        file = self._file_of.get(name)
        if file is None:
            raise ModelLoadError(f"{self}: tensor {name!r} is missing")
        tensor: torch.Tensor = file.get_tensor(name)
        return tensor

    def kept_bits(self, name: str) -> float | None:
        """Return the fewest bits that a number of a matrix may take in memory; see `BitsSource`."""
        file = self._file_of.get(name)
        return None if file is None else FLOAT_BITS.get(file.get_slice(name).get_dtype())


def _read_index(folder: Path) -> dict[str, str]:
    """Return tensor name to file name; empty where the folder has no index."""
    if not (folder / INDEX).exists():
        return {}
    index = read_json(folder / INDEX)
    weight_map = index.values.get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(file, str) for file in weight_map.values()):
        raise index.wrong("weight_map", "an object that maps tensor names to file names")
    outside = next((file for file in weight_map.values() if Path(file).name != file), None)
    if outside is not None:
        raise ModelLoadError(f"{index.origin}: `weight_map` names {outside!r}; files must lie in the same folder")
    return weight_map


def _files_without_index(folder: Path) -> list[str]:
    if (folder / SINGLE).exists():
        return [SINGLE]
    files = sorted(file.name for file in folder.glob("*.safetensors"))
    if len(files) == 1:
        return files
    if not files:
        raise ModelLoadError(f"{folder} has no *.safetensors")
    raise ModelLoadError(f"{folder} has {len(files)} safetensors files but no {INDEX}; add the index")


def _open(file: Path) -> Any:
    try:
        return safe_open(file, framework="pt")
    except FileNotFoundError:
        raise ModelLoadError(f"{file} is missing, but {INDEX} names it; download it again") from None
    except (SafetensorError, OSError) as error:
        raise ModelLoadError(f"{file} is truncated or damaged ({error}); download it again") from error
