"""QuantisationConfig: what a checkpoint's config says of its quantisation, whichever file says it.

Sources: ``quantization_config`` of config.json (transformers' quantisation configs), ``compression_config`` (older
compressed-tensors), and beside it ``quantize_config.json`` (AutoGPTQ), ``quant_config.json`` (AutoAWQ) and
``hf_quant_config.json`` (NVIDIA ModelOpt).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from inference.errors import CorruptCheckpoint, UnsupportedFormat

METHODS = (
    "gptq", "awq", "fp8", "fbgemm_fp8", "mxfp4", "mxfp8", "compressed-tensors", "bitsandbytes", "hqq", "modelopt",
    "bitnet", "blazr",
)  # fmt: skip
"""Values of ``quant_method`` that are read."""

BLAZR_VERSION, KEPT_VERSION = 1, 2
"""Of the files that ``blazr quantise`` writes; the second one if weights keep the codes that they had before."""

CONFIG_KEYS = ("quantization_config", "compression_config", "text_config.quantization_config")
"""Where config.json states it, dots between an object and its member; the first one that is there holds."""

SIDE_FILES = ("quantize_config.json", "quant_config.json", "hf_quant_config.json")

_REMEDY = f"read are {', '.join(METHODS)}; use the model's unquantised weights or one of these."


@dataclass(frozen=True, slots=True)
class QuantisationConfig:
    """The stated quantisation.

    Attributes:
        method: One of ``METHODS``.
        values: The object as it is written.
        file: Where it is written, for messages.
    """

    method: str
    values: Mapping[str, Any] = field(default_factory=dict)
    file: str = "config.json"

    def integer(self, *keys: str) -> int | None:
        """First of these keys that is there, as a whole number.

        Raises:
            CorruptCheckpoint: It is something else.
        """
        for key in keys:
            value = self.values.get(key)
            if value is not None:
                return whole_number(value, f"{self.file}: {key}")
        return None


def whole_number(value: Any, what: str) -> int:
    """A number of a config that has to be whole and small.

    Raises:
        CorruptCheckpoint: It isn't.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not -1 <= value <= 1 << 20:
        raise CorruptCheckpoint(f"{what} is {str(value)[:60]!r}; it must be a whole number.", param=what[-60:])
    return value


def read_quantisation_config(value: Any, file: str = "config.json") -> QuantisationConfig:
    """Read the object that states the quantisation.

    Args:
        value: As JSON gave it.
        file: Where it stands.

    Raises:
        UnsupportedFormat: The method, or a variant of it, isn't read; the message names it and what is read.
    """
    if not isinstance(value, Mapping):
        raise UnsupportedFormat(
            f"{file}: the quantisation is {str(value)[:60]!r}; it must be an object with quant_method: {_REMEDY}",
            param="quantization_config",
        )
    values, inner = value, value.get("quantization")
    if isinstance(inner, Mapping):  # ModelOpt's hf_quant_config.json, which some copy into config.json
        values = inner if file == "hf_quant_config.json" else {**inner, **value}
    method = _method(values, file)
    if method not in METHODS:
        raise UnsupportedFormat(
            f"{file}: the checkpoint is quantised with {method[:60]!r}, which is not read; {_REMEDY}",
            param="quantization_config",
        )
    found = QuantisationConfig(method, values, file)
    _refuse_variants(found)
    return found


def _method(values: Mapping[str, Any], file: str) -> str:
    stated = values.get("quant_method")
    if stated is not None:
        method = str(stated).lower()
        packing = str(values.get("packing_format", values.get("backend", "")))
        if method in ("auto-round", "intel/auto-round"):
            # auto_gptq and auto_awq are the layouts of those two; auto-round's own stores other zero points.
            return {"auto_round:auto_gptq": "gptq", "auto_round:auto_awq": "awq"}.get(packing, f"auto-round {packing}")
        return method
    if "quant_algo" in values:
        return "modelopt"
    if "config_groups" in values:
        return "compressed-tensors"
    if "w_bit" in values or file == "quant_config.json":
        return "awq"
    if file == "quantize_config.json":
        return "gptq"
    if values.get("load_in_4bit") or values.get("load_in_8bit"):
        return "bitsandbytes"
    return "?"


def _refuse_variants(config: QuantisationConfig) -> None:
    """Refuse what is laid out for one kernel, or computes something else with the activations."""
    values = config.values
    problem = None
    if config.method == "gptq":
        layout = str(values.get("checkpoint_format", values.get("format", "gptq")))
        if values.get("is_marlin_format"):
            layout = "marlin"
        if layout not in ("gptq", "gptq_v2"):
            problem = f"checkpoint_format {layout[:40]!r}; gptq and gptq_v2 are read"
    elif config.method == "awq":
        layout = str(values.get("version", "gemm")).lower()
        backend = str(values.get("backend", "autoawq")).lower()
        if layout != "gemm":
            problem = f"AWQ's version {layout[:40]!r}; gemm is read"
        elif backend == "llm-awq":
            problem = f"AWQ's backend {backend!r}; autoawq is read"
    elif config.method == "compressed-tensors":
        problem = _compressed_variant(values)
    elif config.method == "modelopt":
        problem = _modelopt_variant(values)
    elif config.method == "blazr" and values.get("version") not in (BLAZR_VERSION, KEPT_VERSION):
        problem = f"version {str(values.get('version'))[:40]} of blazr's own form; 1 and 2 are read"
    elif config.method == "fp8" and str(values.get("fmt", "e4m3")) not in ("e4m3", "float8_e4m3fn"):
        problem = f"fmt {str(values['fmt'])[:40]!r}; e4m3 is read"
    elif config.method == "bitnet":
        problem = _bitnet_variant(values)
    if problem is not None:
        raise UnsupportedFormat(
            f"{config.file}: the weights are quantised with {problem}. Use a file of that form, or the unquantised "
            "weights.",
            param="quantization_config",
        )


MODELOPT_ALGORITHMS = ("FP8", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO", "MXFP8", "NVFP4", "W4A16_NVFP4")
"""Values of ModelOpt's ``quant_algo`` that are read; the last two have one form."""


def _modelopt_variant(values: Mapping[str, Any]) -> str | None:
    """What of a ModelOpt config isn't read; None: nothing. In mixed precision each layer states its own."""
    algorithms = [values.get("quant_algo")]
    layers = values.get("quantized_layers")
    if algorithms == ["MIXED_PRECISION"] and isinstance(layers, Mapping) and layers:
        algorithms = [layer.get("quant_algo") if isinstance(layer, Mapping) else None for layer in layers.values()]
    for algorithm in algorithms:
        if str(algorithm).upper() not in MODELOPT_ALGORITHMS:
            return f"quant_algo {str(algorithm)[:40]!r}; {', '.join(MODELOPT_ALGORITHMS)} are read"
    return None


def _bitnet_variant(values: Mapping[str, Any]) -> str | None:
    """What of a BitNet config isn't read; None: nothing."""
    known = {"linear_class": ("bitlinear", "autobitlinear"), "quantization_mode": ("offline", "online")}
    for key, names in known.items():
        if values.get(key, names[0]) not in names:
            return f"BitNet's {key} {str(values[key])[:40]!r}; {' and '.join(names)} are read"
    return "use_rms_norm, a norm in each linear layer" if values.get("use_rms_norm") else None


COMPRESSED_FORMATS = (
    "pack-quantized", "int-quantized", "float-quantized", "nvfp4-pack-quantized", "mxfp4-pack-quantized",
    "mxfp8-quantized", "naive-quantized", "dense", "mixed-precision",
)  # fmt: skip
"""Values of compressed-tensors' ``format`` that are read."""


def _compressed_variant(values: Mapping[str, Any]) -> str | None:
    """What of a compressed-tensors config isn't read; None: nothing."""
    groups = values.get("config_groups") or {}
    formats = [values.get("format")]
    if isinstance(groups, Mapping):
        formats += [group.get("format") for group in groups.values() if isinstance(group, Mapping)]
    for form in formats:
        if form is not None and form not in COMPRESSED_FORMATS:
            return f"compressed-tensors' format {str(form)[:40]!r}; {', '.join(COMPRESSED_FORMATS)} are read"
    sparsity = values.get("sparsity_config")
    form = sparsity.get("format") if isinstance(sparsity, Mapping) else None
    if form not in (None, "dense"):
        return f"the sparse format {str(form)[:40]!r}; dense is read"
    if values.get("transform_config"):
        return "transform_config, which rotates activations"
    return None
