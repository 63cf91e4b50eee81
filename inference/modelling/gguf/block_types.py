"""Define the types in which GGUF files store tensors: names, values per block, bytes per block.

Source of the numbers and sizes: ``ggml.h`` and ``ggml-common.h`` of https://github.com/ggml-org/ggml. Standard library
only.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BlockType:
    """How a tensor's values are stored; a block holds neighbours of one row.

    Attributes:
        name: GGML's name, in capitals.
        values: Values per block; 1 for plain numbers.
        num_bytes: Bytes per block.
        codes_of: The type that has the same codes and scales, if this is an older layout of it; else empty.
    """

    name: str
    values: int
    num_bytes: int
    codes_of: str = ""

    @property
    def form_name(self) -> str:
        """Name of the type whose form its codes have."""
        return self.codes_of or self.name


BLOCK_TYPES: dict[int, BlockType] = {
    0: BlockType("F32", 1, 4), 1: BlockType("F16", 1, 2), 2: BlockType("Q4_0", 32, 18), 3: BlockType("Q4_1", 32, 20),
    6: BlockType("Q5_0", 32, 22), 7: BlockType("Q5_1", 32, 24), 8: BlockType("Q8_0", 32, 34),
    10: BlockType("Q2_K", 256, 84), 11: BlockType("Q3_K", 256, 110), 12: BlockType("Q4_K", 256, 144),
    13: BlockType("Q5_K", 256, 176), 14: BlockType("Q6_K", 256, 210), 16: BlockType("IQ2_XXS", 256, 66),
    17: BlockType("IQ2_XS", 256, 74), 18: BlockType("IQ3_XXS", 256, 98), 19: BlockType("IQ1_S", 256, 50),
    20: BlockType("IQ4_NL", 32, 18), 21: BlockType("IQ3_S", 256, 110), 22: BlockType("IQ2_S", 256, 82),
    23: BlockType("IQ4_XS", 256, 136), 24: BlockType("I8", 1, 1), 25: BlockType("I16", 1, 2),
    26: BlockType("I32", 1, 4), 27: BlockType("I64", 1, 8), 28: BlockType("F64", 1, 8), 29: BlockType("IQ1_M", 256, 56),
    30: BlockType("BF16", 1, 2), 34: BlockType("TQ1_0", 256, 54), 35: BlockType("TQ2_0", 256, 66),
    39: BlockType("MXFP4", 32, 17), 40: BlockType("NVFP4", 64, 36), 41: BlockType("Q1_0", 128, 18),
    -2: BlockType("Q4_0 (ggjt 2)", 32, 20, "Q4_0"), -3: BlockType("Q4_1 (ggjt 2)", 32, 24, "Q4_1"),
    -8: BlockType("Q8_0 (before ggjt 3)", 32, 36, "Q8_0"),
    -12: BlockType("Q4_0 (ggjt 1)", 32, 20, "Q4_0"), -13: BlockType("Q4_1 (ggjt 1)", 32, 24, "Q4_1"),
    -16: BlockType("Q5_0 (ggjt 1)", 32, 22, "Q5_0"), -17: BlockType("Q5_1 (ggjt 1)", 32, 24, "Q5_1"),
}  # fmt: skip
"""GGML's numbers to types. The gaps are types that GGML has removed, and those of its activations (Q8_1, Q8_K). Types
below 0 are layouts that had the same numbers in ggjt files of the versions 1 and 2; no GGUF file can state them."""

BY_NAME: dict[str, BlockType] = {kind.name: kind for kind in BLOCK_TYPES.values()}

COMPUTED_TYPES: tuple[str, ...] = (
    "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4",
    "NVFP4", "Q1_0", "TQ1_0", "TQ2_0", "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S",
)  # fmt: skip
"""Types of codes that are read: ``weights/block_values.py`` has a formula for each."""
