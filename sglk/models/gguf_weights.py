"""Weights of a GGUF file, dequantised and under their Hugging Face names."""

import math
import re
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import torch
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize

from sglk.backends.few_bits import FewBits
from sglk.backends.kept_kinds import FLOAT_BITS, KEPT_BITS
from sglk.errors import ModelLoadError
from sglk.models.experts import ExpertNames
from sglk.models.gguf_few_bits import few_bits_of
from sglk.models.gguf_file import GgufFile
from sglk.models.gguf_rope import FACTORS
from sglk.models.registry import model_class
from sglk.models.spec import ModelSpec

_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k": "self_attn.k_proj",
    "attn_k_norm": "self_attn.k_norm",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
}
_STACK = re.compile(r"blk\.(\d+)\.ffn_(gate|up|down)_exps\.weight")
"""One tensor with the weights of all experts of a layer."""
ROWS = 16
LONG_BYTES = 6 * 2**10
"""Stored bytes of a row that keep what is made of ROWS of them in a core's cache."""


class GgufWeights:
    """A WeightSource over an open GGUF file."""

    def __init__(self, file: GgufFile, spec: ModelSpec) -> None:
        self._file = file
        self._spec = spec
        names = model_class(spec.architecture).expert_names
        self._stored: dict[str, tuple[str, int | None]] = {}
        """Hugging Face name to the stored tensor and, where it is a stack, the expert."""
        for name, tensor in file.tensors.items():
            if stack := _STACK.fullmatch(name):
                each = _expert_names(stack[1], stack[2], tensor.shape[0], names)
                self._stored |= {one: (name, expert) for expert, one in enumerate(each)}
            elif name != FACTORS:
                self._stored[huggingface_name(name, names)] = name, None
        # llama.cpp rotates neighbouring pairs for this family and stores q and k in that order.
        self._permuted = file.metadata.get("general.architecture") == "llama"

    def __str__(self) -> str:
        return str(self._file.path)

    def names(self) -> Iterable[str]:
        """Return the Hugging Face names of all tensors."""
        return self._stored.keys()

    def get(self, name: str) -> torch.Tensor:
        """Return one tensor in fp32."""
        if name not in self._stored:
            raise ModelLoadError(f"{self}: tensor {name!r} is missing")
        weight = self._dequantise(*self._stored[name])
        if name.endswith("shared_expert_gate.weight"):
            # Stored as the vector that it is.
            return weight.reshape(1, -1)
        heads = self._rotated_heads(name)
        return weight if heads is None else _half_rotation_order(weight, heads)

    def few_bits(self, name: str) -> FewBits | None:
        """Return what a matrix is stored as, where that is numbers of few bits; see `FewBitsSource`."""
        stored_name, expert = self._stored.get(name, ("", None))
        if stored_name not in self._file.tensors or expert is not None or name.endswith("shared_expert_gate.weight"):
            return None
        kind = self._file.tensors[stored_name].type
        few = few_bits_of(self._file.raw(stored_name), kind) if kind.name in KEPT_BITS else None
        self._file.forget(stored_name)
        heads = self._rotated_heads(name)
        if few is None or heads is None:
            return few
        return few.rows(_half_rotation_order(torch.arange(few.shape[0]), heads))

    def kept_bits(self, name: str) -> float | None:
        """Return the fewest bits that a number of a matrix may take in memory; see `BitsSource`."""
        stored_name, expert = self._stored.get(name, ("", None))
        tensor = self._file.tensors.get(stored_name)
        if tensor is None:
            return None
        return FLOAT_BITS.get(tensor.type.name, None if expert is not None else KEPT_BITS.get(tensor.type.name))

    def _rotated_heads(self, name: str) -> int | None:
        """Return the heads of a projection whose rows are in llama.cpp's order, None for other tensors."""
        if self._permuted and ".self_attn.q_proj." in name:
            return self._spec.num_attention_heads
        if self._permuted and ".self_attn.k_proj." in name:
            return self._spec.num_key_value_heads
        return None

    def _dequantise(self, stored_name: str, expert: int | None) -> torch.Tensor:
        tensor, raw, shape = self._file.tensors[stored_name], self._file.raw(stored_name), slice(None)
        if expert is not None:
            raw, shape = raw[expert], slice(1, None)
        self._file.check_readable(stored_name)
        weight = _dequantised(raw, tensor.type, tuple(tensor.shape[shape]))
        if expert is None:
            self._file.forget(stored_name)
        return weight


def _dequantised(raw: npt.NDArray[np.uint8], kind: GGMLQuantizationType, shape: tuple[int, ...]) -> torch.Tensor:
    """Return a tensor in fp32, made a part at a time: the library has all of what it makes twice for a while.

    It takes ROWS rows at a time, and of short ones twice as long: blocks may as well lie in fewer rows.
    """
    rows = math.prod(raw.shape[:-1])
    together = math.gcd(rows, 1 << (max(1, LONG_BYTES // raw.shape[-1]).bit_length() - 1))
    long_rows = raw.reshape(rows // together, -1)
    values = np.empty((len(long_rows), math.prod(shape) // len(long_rows)), np.float32)
    for start in range(0, len(long_rows), ROWS):
        part = slice(start, start + ROWS)
        values[part] = dequantize(long_rows[part], kind)
    return torch.from_numpy(values.reshape(shape))


def huggingface_name(stored_name: str, experts: ExpertNames) -> str:
    """Return the Hugging Face name of a llama.cpp tensor name; an unknown name is its own."""
    stem, _, suffix = stored_name.rpartition(".")
    if stem in _TOP:
        return f"{_TOP[stem]}.{suffix}"
    match = re.fullmatch(r"blk\.(\d+)\.(\w+)", stem)
    if match and match[2] in _LAYER:
        return f"model.layers.{match[1]}.{_LAYER[match[2]]}.{suffix}"
    if match and match[2] == "ffn_gate_inp":
        return f"model.layers.{match[1]}.{experts.block}.gate.{suffix}"
    return stored_name


def _expert_names(layer: str, part: str, count: int, names: ExpertNames) -> Iterable[str]:
    projection = {"gate": names.gate, "up": names.up, "down": names.down}[part]
    return (f"model.layers.{layer}.{names.block}.experts.{expert}.{projection}.weight" for expert in range(count))


def _half_rotation_order(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Bring the rows of each head from (x0, y0, x1, y1, ...) to Hugging Face's (x0, x1, ..., y0, y1, ...).

    Rows of another number are left alone: who reads them compares the shape.
    """
    if weight.shape[0] % (2 * heads):
        return weight
    pairs = weight.reshape(heads, -1, 2, *weight.shape[1:])
    return pairs.transpose(1, 2).reshape(weight.shape)
