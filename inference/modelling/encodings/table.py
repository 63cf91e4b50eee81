"""Turn the tensors of a quantised checkpoint into the table of the checkpoint that it was made from."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from inference.errors import MissingTensor, UnsupportedFormat
from inference.modelling.encoded_tensor import EncodedTensor
from inference.modelling.encodings.bitnet import find_bitnet
from inference.modelling.encodings.bitsandbytes import find_bitsandbytes
from inference.modelling.encodings.blazr import METHOD, described_measurement, find_blazr, kept_label, stored_dtype
from inference.modelling.encodings.compressed import find_packed_integers
from inference.modelling.encodings.fp4 import find_fp4
from inference.modelling.encodings.gptq_awq import find_gptq_and_awq
from inference.modelling.encodings.hqq import find_hqq
from inference.modelling.encodings.parts import FLOATS, Parts, ReadBytes
from inference.modelling.encodings.quantisation_config import QuantisationConfig
from inference.modelling.encodings.scaled import find_scaled
from inference.modelling.families.config import Confidence, Facts, TensorInfo

DECODED_DTYPE = "F32"
"""What a decoded weight counts as in the table of tensors: its values are computed in float32."""

_FINDERS = (
    find_blazr,
    find_bitnet,
    find_gptq_and_awq,
    find_hqq,
    find_bitsandbytes,
    find_packed_integers,
    find_fp4,
    find_scaled,
)

_ACTIVATION_SCALES = re.compile(r"\.(input|activation|output|input_global)(_scale|_zero_point)(_inv)?$")
_CACHE_SCALES = re.compile(r"\.([kvq]|kv)_(proj\.(output_|[kvq]_)?)?(scale|zero_point)$")
_COMPANIONS = re.compile(
    r"\.(qweight|qzeros|g_idx|W_q|absmax|SCB|weight_packed)$|(weight|_proj)_(scale|scale_inv|scale_2|global_scale|shape|"
    r"zero_point|g_idx|blocks|scales)$|\.quant_state\."
)
_MAX_BIAS = 1 << 16


@dataclass(frozen=True, slots=True)
class DecodedTable:
    """A checkpoint as it was before it was quantised.

    Attributes:
        tensors: Its tensors; those that are decoded while they are read are ``DECODED_DTYPE``, in files of
            ``blazr quantise`` what they were before.
        encoded: How these are decoded.
    """

    tensors: dict[str, TensorInfo]
    encoded: tuple[EncodedTensor, ...] = ()


def decode_table(
    tensors: Mapping[str, TensorInfo], config: QuantisationConfig | None, read: ReadBytes, facts: Facts
) -> DecodedTable:
    """Find the encoded weights, tensor by tensor, and check them against the config.

    Args:
        tensors: Header entries of all files.
        config: What is stated; None: nothing, then names and shapes decide.
        read: Reads small tensors.
        facts: Gets what was found.

    Raises:
        CheckpointError: A part is missing, or parts and config contradict each other; the message names both.
    """
    parts = Parts(tensors, read)
    for find in _FINDERS:
        find(parts, config)
    if not parts.encoded:
        _check_nothing_is_encoded(parts, config)
        return DecodedTable(dict(tensors))
    is_own = config is not None and config.method == METHOD
    if not is_own:
        _leave_out_scales(parts, facts)
        _leave_out_zero_biases(parts, facts)
    _check_left(parts)
    table: dict[str, TensorInfo] = {}
    counts_as = stored_dtype(config) if config is not None and is_own else DECODED_DTYPE
    by_part = {next(iter(item.parts.values())): item for item in parts.encoded.values()}
    for name, info in tensors.items():
        item = by_part.get(name)
        if item is not None:
            table[item.name] = TensorInfo(counts_as, item.shape, info.file)
        elif name not in parts.taken:
            table[name] = info
    encoded = tuple(parts.encoded.values())
    if config is not None and is_own:
        _record_own(encoded, len(table), config, facts)
    else:
        _record(encoded, len(table), config, facts)
    return DecodedTable(table, encoded)


def _check_nothing_is_encoded(parts: Parts, config: QuantisationConfig | None) -> None:
    _check_left(parts)
    if config is None or config.method == "compressed-tensors":  # "dense", or not compressed yet
        return
    raise UnsupportedFormat(
        f"{config.file} says that the weights are quantised ({config.method}), but no tensor is stored in that form; "
        "remove quantization_config if they are not.",
        param="quantization_config",
    )


def _leave_out_scales(parts: Parts, facts: Facts) -> None:
    """Leave out scales of activations and caches, which only computing in eight bits needs."""
    activations = [name for name in parts.tensors if _ACTIVATION_SCALES.search(name)]
    caches = [name for name in parts.tensors if _CACHE_SCALES.search(name) and name not in parts.taken]
    parts.ignore(*activations, *caches)
    if caches:
        facts.warn(
            f"{len(caches)} tensors scale keys and values of a cache in eight bits ({caches[0][:80]}); the cache is "
            "kept in the model's dtype, and they are left out."
        )


def _leave_out_zero_biases(parts: Parts, facts: Facts) -> None:
    """Leave out the biases of zeros that AutoGPTQ wrote beside layers that have none."""
    kinds: dict[str, list[str]] = {}
    for name in parts.encoded:
        bias = name.removesuffix("weight") + "bias"
        info = parts.find(bias)
        if info is not None and bias != name and info.dtype in FLOATS and info.end - info.begin <= _MAX_BIAS * 2:
            kinds.setdefault(re.sub(r"\d+", "#", bias), []).append(bias)
    for names in kinds.values():
        if not any(any(parts.read(parts.tensors[name])) for name in names):
            parts.ignore(*names)
            facts.warn(f"{len(names)} biases of quantised layers hold only zeros ({names[0][:80]}) and are left out.")


def _check_left(parts: Parts) -> None:
    """Refuse codes or scales that belong to nothing."""
    for name in parts.tensors:
        if name not in parts.taken and _COMPANIONS.search(name):
            raise MissingTensor(
                f"{name[:120]} belongs to a quantised weight, the rest of which is missing or has another form; read "
                "are the files of GPTQ, AWQ, FP8, compressed-tensors, MXFP4, bitsandbytes, HQQ, ModelOpt and BitNet.",
                param=name[:120],
            )


def _record_own(encoded: tuple[EncodedTensor, ...], num_tensors: int, config: QuantisationConfig, facts: Facts) -> None:
    """Record the forms of a checkpoint of ``blazr quantise``, which is computed in its codes."""
    kinds = Counter(item.form or kept_label(item.bits, is_float=item.is_float) for item in encoded)
    shown = ", ".join(f"{form}: {count}" for form, count in kinds.most_common())
    stated = described_measurement(config)
    facts.add(
        "quantisation",
        f"{METHOD}, {shown}" + (f"; {stated}" if stated else ""),
        f"{config.file} and the tensors: {len(encoded)} of {num_tensors} weights are in codes",
    )


def _record(
    encoded: tuple[EncodedTensor, ...], num_tensors: int, config: QuantisationConfig | None, facts: Facts
) -> None:
    kinds = Counter(map(_described, encoded))
    shown = "; ".join(f"{kind}: {count}" if len(kinds) > 1 else kind for kind, count in kinds.most_common(4))
    if config is not None:
        value, confidence = f"{config.method}, {shown}", Confidence.CERTAIN
        evidence = f"{config.file} and the tensors: {len(encoded)} of {num_tensors} weights are in codes"
    else:
        value, confidence = shown, Confidence.HIGH
        evidence = f"names and shapes of the tensors, there is no config: {len(encoded)} of {num_tensors} are in codes"
        if any(item.coding == "gptq" for item in encoded):
            confidence = Confidence.LOW
            facts.warn(
                "no config says which GPTQ wrote the zero points; they are read as the first version's, one less than "
                "they are. If the text is nonsense, add quantize_config.json with checkpoint_format gptq_v2."
            )
    facts.add("quantisation", value, evidence, confidence)


def _described(item: EncodedTensor) -> str:
    """One weight's form in words, without names of tensors."""
    rows, columns = item.shape[-2:]
    size = item.group_size
    if item.coding == "scaled":
        if item.fused_rows:
            scales = f"a scale for each of {len(item.fused_rows)} matrices"
        elif item.block == (rows, columns):
            scales = "a scale per tensor"
        elif item.block == (1, columns):
            scales = "a scale per row"
        else:
            scales = f"blocks of {item.block[0]}x{item.block[1]}"
        return f"8 bits, {scales}"
    if item.coding == "bitnet":
        return "three values in " + ("2 bits" if "codes" in item.parts else "floats") + ", inputs rounded to 8 bits"
    if item.coding == "fp4":
        return f"4-bit floats in groups of {size}"
    if item.coding == "bnb4":
        return f"4 bits in blocks of {size}" + (", scales in 8 bits" if item.nested_size else "")
    scales = "a scale per row" if size == columns else f"groups of {size}"
    return f"{item.coding}, {item.bits} bits, {scales}"
