"""EncodedTensor: how one weight is computed from the tensors that a quantised checkpoint holds in its place.

Families and specs name the weight (``….q_proj.weight``), as in the checkpoint before quantisation; the files hold
codes, scales and zero points. Standard library only, like the specs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from inference.modelling.specs.parts import Shape

Coding = Literal["gptq", "awq", "packed_int", "scaled", "fp4", "bnb4", "hqq", "bitnet", "blazr", "gguf"]


@dataclass(frozen=True, slots=True)
class EncodedTensor:
    """One weight in codes. o counts outputs, i inputs, g groups, b bits; shapes of parts are those in the files.

    ===========  ==========================================================================================
    ``gptq``     qweight (i·b/32, o), scales (g, o), qzeros (g, o·b/32) unless all are 2^(b-1), g_idx (i) if there
    ``awq``      qweight (i, o/8), qzeros (g, o/8), scales (g, o), 4 bits
    ``packed_int``  packed (o, words), scale (o, g), zero_point (words, g) and g_idx (i) if there
    ``scaled``   codes in the weight's shape (int8, float8), scale by blocks, zero_point if there
    ``fp4``      blocks (…, i/2) bytes, scale (…, i/group_size), global_scale if there
    ``bnb4``     packed (bytes of pairs), absmax, quant_map; nested_absmax and nested_quant_map if absmax is in codes
    ``hqq``      packed, scale, zero
    ``bitnet``   codes (o/4, i) bytes and scale (1), or weight (o, i) and scale, or weight alone, rounded by its mean
    ``blazr``    codes (…, o, bytes) and scales (…, o, g) in rows, as ``layers.coded.quantised_rows`` gives them;
                 kept codes may have offsets (…, o, g) too
    ``gguf``     none: blocks of ``type``, which the file's header describes
    ===========  ==========================================================================================

    Attributes:
        name: The weight's name, which no file has.
        shape: The weight's shape, (o, i) for a matrix.
        coding: How the values follow from the parts.
        parts: Roles, as above, to tensor names.
        bits: Of a code; 0 where the dtype says it.
        group_size: Inputs that share a scale (``bnb4``: values in a row-major sequence).
        block: Outputs and inputs that share a scale (``scaled``).
        zero_offset: Added to each stored zero point (``gptq``); the code that stands for 0 (``blazr``, kept codes).
        divisor: What every value is divided by (``scaled``).
        divides: Whether the scale of the whole divides; else it multiplies (``fp4``, ``bitnet``).
        axis: Along which values share a scale (``hqq``): 1 rows of the grouped values, 0 columns.
        offset: Added to each decoded absmax (``bnb4``).
        nested_size: Values of absmax that share a nested_absmax (``bnb4``).
        form: What the codes stand for (``blazr``): a name of ``inference.modelling.quantisation.OWN_FORMS``; empty: the
            codes are those that the weight had before, as ``bits``, ``group_size`` and so on say.
        type: GGML's name of the blocks (``gguf``).
        scales: dtype of scales and offsets if the codes stay in memory; empty: the weight is expanded to floats. Unused
            for ``blazr`` and ``gguf``, whose forms state it, except for kept codes.
        levels: The values of ``quant_map`` rounded to bytes (``bnb4``), see ``encodings.byte_levels``; what kept codes
            stand for; else empty.
        is_float: Whether the codes are float8 in E4M3 (``scaled``, ``blazr``).
        is_permuted: Whether ``g_idx`` puts ``group_size`` inputs into each group that aren't neighbours.
        keeps_blocks: Whether the inputs of a block stay together, so that scales may keep the factor that they share
            (``gguf``); files that were registered by an earlier version say no.
        fused_rows: Rows of the matrices that lie one below the other, each with a scale (``scaled``) or a global scale
            (``fp4``) of its own; empty: the weight is one matrix.
    """

    name: str
    shape: Shape
    coding: Coding
    parts: Mapping[str, str]
    bits: int = 0
    group_size: int = 0
    block: tuple[int, int] = (0, 0)
    zero_offset: int = 0
    divisor: float = 1.0
    divides: bool = False
    axis: int = 1
    offset: float = 0.0
    nested_size: int = 0
    form: str = ""
    type: str = ""
    scales: Literal["", "float16", "bfloat16"] = ""
    levels: tuple[int, ...] = ()
    is_float: bool = False
    is_permuted: bool = False
    keeps_blocks: bool = False
    fused_rows: tuple[int, ...] = ()
