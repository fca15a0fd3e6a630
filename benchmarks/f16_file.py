"""A GGUF file's model in 16-bit floats, as llama.cpp converts one: matrices in fp16, vectors in fp32."""

from pathlib import Path

import gguf
import numpy as np


def write_in_f16(source: Path, target: Path) -> None:
    """Write the same model, vocabulary and settings of `source` to `target`."""
    read = gguf.GGUFReader(source)
    architecture = read.fields["general.architecture"].contents()
    written = gguf.GGUFWriter(target, str(architecture))
    for field in read.fields.values():
        if field.name.startswith("GGUF.") or field.name in ("general.architecture", "general.file_type"):
            continue
        kind = field.types[0]
        part = field.types[-1] if kind is gguf.GGUFValueType.ARRAY else None
        written.add_key_value(field.name, field.contents(), kind, sub_type=part)
    written.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    for tensor in read.tensors:
        numbers = gguf.dequantize(tensor.data, tensor.tensor_type)
        written.add_tensor(tensor.name, numbers.astype(np.float16 if len(tensor.shape) > 1 else np.float32))
    written.write_header_to_file()
    written.write_kv_data_to_file()
    written.write_tensors_to_file()
    written.close()
