"""The kinds of tensors that the cpu backend keeps in fewer bits where it computes in fp32. Needs no torch."""

KEPT_BITS = {"Q4_0": 5.0, "Q4_1": 5.0, "Q4_K": 6.0, "Q8_0": 8.5, "Q6_K": 10.0}
"""GGML type of a matrix to the bits that each of its numbers takes, scales and offsets included.

Scales of Q4_K and Q6_K are products that need fp32, and numbers of 6 bits are kept in 8.
"""

GGML_NUMBERS = {
    "F16": 1,
    "Q4_0": 2,
    "Q4_1": 3,
    "Q8_0": 8,
    "Q4_K": 12,
    "Q6_K": 14,
    "BF16": 30,
    "TQ1_0": 34,
    "TQ2_0": 35,
    "MXFP4": 39,
    "NVFP4": 40,
}
"""By the names of all types that are kept, for whoever does without the `gguf` library, which brings numpy."""

FLOAT_BITS = dict.fromkeys(("F16", "BF16", "TQ1_0", "TQ2_0", "MXFP4", "NVFP4"), 16.0)
"""The same of kinds, of GGUF and of safetensors, whose numbers are floats of 16 bits and stay that, in experts too."""
