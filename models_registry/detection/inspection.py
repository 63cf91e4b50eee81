"""Inspect a checkpoint without running any of its code: files in, ``Inspection`` out.

Only headers, small JSON files and (for oxidizr's Mamba layers) a few A_log values are read. What comes out is all
that a worker needs to build the network; nobody detects anything a second time.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from inference.errors import (
    BlazrError,
    CheckpointError,
    CorruptCheckpoint,
    InvalidRequest,
    MissingTensor,
    TensorShapeMismatch,
    UnsupportedArchitecture,
    UnsupportedFormat,
)
from inference.modelling.encoded_tensor import EncodedTensor
from inference.modelling.families.checks import TIED_HEAD, readable_dtypes, source_shape
from inference.modelling.families.config import (
    CheckpointConfig,
    CheckpointView,
    Confidence,
    Fact,
    Facts,
    TensorInfo,
    TensorTable,
)
from inference.modelling.families.config_keys import IGNORED_KEYS
from inference.modelling.families.registry import family_builder
from inference.modelling.families.vision_part import PREPROCESSOR
from inference.modelling.spec import ModelSpec
from inference.modelling.specs.compressed import CompressedAttentionSpec
from inference.modelling.specs.hyper import HyperConnectionSpec
from inference.modelling.specs.latent import MLASpec
from inference.modelling.specs.layers import AttentionSpec, Mamba2Spec, MoESpec
from inference.modelling.specs.linear import Mamba3Spec
from inference.modelling.specs.parts import NormSpec
from inference.values.tokenizer_spec import TokenizerSpec
from models_registry.detection.architecture import detect_format, detect_model_type
from models_registry.detection.directory import CheckpointDirectory, CheckpointFile, resolve
from models_registry.detection.facts import CHAT_TEMPLATE, TOKENIZER_FROM, check_overrides
from models_registry.detection.ggjt_files import without_stated_defaults
from models_registry.detection.gguf_files import METADATA, read_gguf_checkpoint
from models_registry.detection.json_file import read_object
from models_registry.detection.other_tokenizer import files_of_other
from models_registry.detection.printable import printable
from models_registry.detection.quantised import decode_quantised
from models_registry.detection.safetensors_header import MAX_TENSORS, read_header
from models_registry.detection.stored_values import are_alike, read_values
from models_registry.detection.vocabulary import choose_tokenizer

A_LOG_NEAR_ZERO = 0.5
"""An A_log whose values all stay below this (ln 2 = 0.69 is the second of the trainer's ln(1..H)) was never
given its initial values."""


@dataclass(frozen=True, slots=True)
class Inspection:
    """Everything that is known of a checkpoint.

    Attributes:
        tokenizer: How to read and write text.
        facts: What was found, why, and how sure that is.
        warnings: What an operator should know, one sentence each.
        directory: Absolute directory that all file names are relative to.
        files: The files that matter, weights first; a tokenizer file of another checkpoint has an absolute path.
        tensors: Header entries by name.
    """

    spec: ModelSpec
    tokenizer: TokenizerSpec
    facts: tuple[Fact, ...]
    warnings: tuple[str, ...]
    directory: Path
    files: tuple[CheckpointFile, ...]
    tensors: dict[str, TensorInfo]

    @property
    def weight_files(self) -> tuple[str, ...]:
        """Names of the weight files, relative to ``directory``."""
        return tuple(file.path for file in self.files if file.role == "weights")

    @property
    def weight_paths(self) -> tuple[Path, ...]:
        return tuple(self.directory / name for name in self.weight_files)

    @property
    def other_files(self) -> tuple[str, ...]:
        """Names of the directory's files without weights: config, tokenizer, template."""
        # A tokenizer of another checkpoint has an absolute path.
        own = (file for file in self.files if not Path(file.path).is_absolute())
        return tuple(file.path for file in own if file.role not in ("weights", "index"))

    @property
    def num_parameters(self) -> int:
        """Number of weights, a tied head counted once."""
        return self.spec.num_parameters()

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files if file.role == "weights")

    def to_dict(self) -> dict[str, Any]:
        """A JSON form that ``from_dict`` reads back to an equal value."""
        numbers = {file.path: number for number, file in enumerate(self.files)}
        return {
            "version": 1,
            "spec": self.spec.to_dict(),
            "tokenizer": self.tokenizer.to_dict(),
            "facts": [fact.to_dict() for fact in self.facts],
            "warnings": list(self.warnings),
            "directory": str(self.directory),
            "files": [[file.path, file.size_bytes, file.role] for file in self.files],
            "tensors": [
                [name, info.dtype, list(info.shape), numbers[info.file], info.begin, info.end]
                for name, info in self.tensors.items()
            ],
        }

    @classmethod
    def from_dict(cls, payload: Mapping[str, Any]) -> Inspection:
        """Read what ``to_dict`` wrote.

        Raises:
            CorruptCheckpoint: Members are missing, or have another type.
        """
        try:
            return cls._from_dict(payload)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise CorruptCheckpoint(
                f"The stored inspection of this model is damaged ({type(error).__name__}: {error}); inspect its files "
                "again (POST /registry/checkpoints/ID/refresh), or delete the model and register them again."
            ) from error

    @classmethod
    def _from_dict(cls, payload: Mapping[str, Any]) -> Inspection:
        files = tuple(CheckpointFile(path, size, role) for path, size, role in payload["files"])
        return cls(
            spec=ModelSpec.from_dict(payload["spec"]),
            tokenizer=TokenizerSpec.from_dict(payload["tokenizer"]),
            facts=tuple(
                Fact(fact["name"], fact["value"], fact["evidence"], Confidence(fact["confidence"]))
                for fact in payload["facts"]
            ),
            warnings=tuple(payload["warnings"]),
            directory=Path(payload["directory"]),
            files=files,
            tensors={
                name: TensorInfo(dtype, tuple(shape), files[number].path, begin, end)
                for name, dtype, shape, number, begin, end in payload["tensors"]
            },
        )


def inspect_checkpoint(path: Path, *, overrides: Mapping[str, Any] | None = None) -> Inspection:
    """Find out what the checkpoint at ``path`` is.

    Args:
        path: A directory, or one of its weight files.
        overrides: Facts set by a person, by the names of ``facts.FACTS``; they win over everything found.

    Raises:
        CheckpointError: It can't be served; the message says which file or tensor, and why.
        InvalidRequest: An override is unknown, illegal, contradicts the tensors, or would have no effect.
    """
    try:
        return _inspect(path, check_overrides(overrides or {}))
    except BlazrError as error:
        # Messages quote names and values of the files, and go to terminals and logs.
        error.message = printable(error.message)
        error.param = None if error.param is None else printable(error.param)
        raise


def _inspect(path: Path, checked: dict[str, Any]) -> Inspection:
    resolved = resolve(path)
    facts = Facts(checked)
    if resolved.is_gguf:
        inspection = _inspect_gguf(resolved, facts, checked)
        return replace(inspection, facts=without_stated_defaults(inspection.facts))
    tensors = _read_tensors(resolved)
    config_path = resolved.find("config.json")
    config = CheckpointConfig({} if config_path is None else read_object(config_path))
    _record_weights(resolved, facts)
    _record_config(config_path, config, facts)
    preprocessor_path = resolved.find("preprocessor_config.json")
    if preprocessor_path is not None:
        config = CheckpointConfig({**config.values, PREPROCESSOR: read_object(preprocessor_path)})
    return _inspection(resolved, tensors, config, facts, checked)


def _inspect_gguf(resolved: CheckpointDirectory, facts: Facts, checked: dict[str, Any]) -> Inspection:
    """Inspect the checkpoint that a GGUF or ggjt file was made of; facts and messages name the file's own keys."""
    found = read_gguf_checkpoint(resolved, facts)
    _record_weights(resolved, facts)
    try:
        return _inspection(resolved, found.tensors, CheckpointConfig(found.config), facts, checked, found.encoded)
    except BlazrError as error:
        error.message = _by_metadata(error.message)
        raise


def _record_weights(resolved: CheckpointDirectory, facts: Facts) -> None:
    facts.add(
        "weights",
        ", ".join(resolved.weight_files[:3]) + (", …" if len(resolved.weight_files) > 3 else ""),
        resolved.choice,
        Confidence.MEDIUM if resolved.ambiguous else Confidence.CERTAIN,
    )


def _inspection(
    resolved: CheckpointDirectory,
    tensors: dict[str, TensorInfo],
    config: CheckpointConfig,
    facts: Facts,
    checked: dict[str, Any],
    encoded: tuple[EncodedTensor, ...] = (),
) -> Inspection:
    # From here on the tensors are those of the checkpoint before it was quantised.
    decoded = decode_quantised(resolved, tensors, config, facts)
    format_ = detect_format(decoded.tensors, config, facts)
    model_type, is_inferred = detect_model_type(decoded.tensors, format_, config, facts)
    # Families with several types read the type from the config, which must have the detected one.
    typed = config if model_type == "oxidizr" else CheckpointConfig({**config.values, "model_type": model_type})
    view = CheckpointView(typed, TensorTable(decoded.tensors), facts)
    spec = _with_encoded(_build(view, model_type, is_inferred), decoded.encoded + encoded)
    _check_sources(spec, view.tensors)
    _check_overrides_hold(spec, checked)
    if spec.tie_word_embeddings and "tie_word_embeddings" not in checked:
        _check_tied_head(spec, resolved.directory, decoded.tensors)
    if spec.format == "oxidizr":
        _look_at_a_log(spec, resolved.directory, tensors, facts)
    tokenizer = choose_tokenizer(resolved, spec, config, facts)
    return Inspection(
        spec=spec,
        tokenizer=tokenizer,
        facts=tuple(
            replace(fact, value=_plain(fact.value), evidence=printable(_evidence(fact.evidence, resolved)))
            for fact in facts.facts
        ),
        warnings=tuple(map(printable, facts.warnings)),
        directory=resolved.directory,
        files=(*resolved.files, *(files_of_other(tokenizer) if TOKENIZER_FROM in checked else ())),
        tensors=tensors,
    )


def _with_encoded(spec: ModelSpec, encoded: tuple[EncodedTensor, ...]) -> ModelSpec:
    """The spec with how its tensors are decoded; its head for multi-token prediction gets those that it reads."""
    head = spec.prediction_head
    if head is not None and encoded:
        read = {name for source in head.parameters.values() for name in source.tensor_names()}
        head = replace(head, encoded=tuple(item for item in encoded if item.name in read))
    spec = replace(spec, encoded=encoded, prediction_head=head)
    spec.rounding_matrices()  # refuses products of which only a part rounds its inputs
    return spec


def _evidence(text: str, resolved: CheckpointDirectory) -> str:
    return _by_metadata(text) if resolved.is_gguf else text


def _by_metadata(text: str) -> str:
    """A sentence about config.json, for a file that has its metadata in it."""
    return re.sub(r"\bconfig\.json\b", METADATA, text)


def _plain(value: Any) -> Any:
    """A fact's value as strict JSON: no tuples, no infinities, no control characters."""
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, str):
        return printable(value)
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _read_tensors(resolved: CheckpointDirectory) -> dict[str, TensorInfo]:
    tensors: dict[str, TensorInfo] = {}
    for file in resolved.weight_files:
        header = read_header(resolved.directory / file)
        twice = next((name for name in header if name in tensors), None)
        if twice is not None:
            raise CorruptCheckpoint(f"tensor {twice} is in {tensors[twice].file} and in {file}.", param=twice)
        if len(tensors) + len(header) > MAX_TENSORS:
            raise CorruptCheckpoint(f"the files hold more than {MAX_TENSORS} tensors together.", param=file)
        tensors |= header
    if not tensors:
        raise UnsupportedArchitecture(f"{', '.join(resolved.weight_files[:3])} holds no tensors.", param="tensors")
    for name, file in (resolved.weight_map or {}).items():
        if name not in tensors:
            raise MissingTensor(f"tensor {name[:120]} should be in {file}, by the index, but isn't.", param=name[:120])
    return tensors


def _record_config(path: Path | None, config: CheckpointConfig, facts: Facts) -> None:
    if path is None:
        facts.add("config", "missing", "there is no config.json; all is inferred from tensor names and shapes")
        facts.warn("there is no config.json: what shapes don't show has a default or is guessed; see the facts.")
        return
    facts.add("config", "config.json", f"{len(config.values)} keys")
    if "auto_map" in config:
        facts.warn("config.json names Python code of its own (auto_map); it is never run.")


def _build(view: CheckpointView, model_type: str, is_inferred: bool) -> ModelSpec:
    """Return the family's spec; the error under an inferred type says that it was inferred."""
    try:
        return family_builder(model_type)(view)
    except BlazrError as error:
        if not is_inferred or isinstance(error, InvalidRequest):
            raise
        raise UnsupportedArchitecture(
            f"the tensor names look like {model_type}'s, but don't fit: {error.message}", param=error.param
        ) from None
    except RecursionError:
        raise CorruptCheckpoint("config.json is nested too deeply.", param="config.json") from None


def _check_sources(spec: ModelSpec, tensors: TensorTable) -> None:
    """Every parameter can be put together, in its shape, from tensors of a readable dtype."""
    shapes, readable = spec.parameter_shapes(), readable_dtypes(spec)
    odd = sorted(shapes.keys() ^ spec.parameters.keys())
    if odd:
        raise UnsupportedArchitecture(
            f"the layers of {spec.model_type} have no complete set of tensors: {', '.join(odd[:5])}.", param=odd[0]
        )
    for parameter, expected in shapes.items():
        source = spec.parameters[parameter]
        found = source_shape(source, tensors)
        if found != expected:
            names = list(source.tensor_names())
            raise TensorShapeMismatch(
                f"{' + '.join(names[:3])}{' …' if len(names) > 3 else ''} has shape {list(found)}; {list(expected)} is "
                f"needed for {parameter}.",
                param=names[0],
            )
        for name in source.tensor_names():
            if tensors[name].dtype not in readable(parameter):
                raise UnsupportedFormat(
                    f"tensor {name} is stored as {tensors[name].dtype}; {', '.join(readable(parameter))} can be read.",
                    param=name,
                )


def _check_overrides_hold(spec: ModelSpec, overrides: Mapping[str, Any]) -> None:
    """An override that changes nothing is an error, not a decoration."""
    for name, value in overrides.items():
        if name in ("model_type", "vocabulary", TOKENIZER_FROM, CHAT_TEMPLATE, IGNORED_KEYS):
            continue
        held = _values_in(spec, name)
        if value not in held:
            raise InvalidRequest(
                f"{name} can't be set to {value!r} here: "
                + (f"the tensors say {', '.join(map(str, held[:3]))}." if held else "no layer of this model has it."),
                param=name,
            )


def _values_in(spec: ModelSpec, fact: str) -> list[Any]:
    """The values that a fact has in the finished spec, over all layers."""
    mixers = [mixer for layer in spec.layers for mixer in layer.token_mixers]
    channels = [layer.channel_mixer for layer in spec.layers if layer.channel_mixer is not None]
    attention = [mixer for mixer in mixers if isinstance(mixer, AttentionSpec)]
    latent = [mixer for mixer in mixers if isinstance(mixer, MLASpec)]
    compressed = [mixer for mixer in mixers if isinstance(mixer, CompressedAttentionSpec)]
    with_heads: list[AttentionSpec | MLASpec | CompressedAttentionSpec] = [*attention, *latent, *compressed]
    values: dict[str, list[Any]] = {
        "max_position_embeddings": [spec.max_position_embeddings],
        "rope.theta": [mixer.rope.theta for mixer in with_heads if mixer.rope is not None],
        "norm.eps": [norm.eps for norm in _outer_norms(spec)],
        "activation": [channel.activation for channel in channels],
        "attention.num_heads": [mixer.num_heads for mixer in with_heads],
        "attention.head_dim": [mixer.head_dim for mixer in attention],
        "moe.top_k": [channel.top_k for channel in channels if isinstance(channel, MoESpec)],
        "mamba2.num_groups": [mixer.num_groups for mixer in mixers if isinstance(mixer, Mamba2Spec)],
        "a_override": [mixer.a_override for mixer in mixers if isinstance(mixer, Mamba2Spec | Mamba3Spec)],
        "tie_word_embeddings": [spec.tie_word_embeddings],
    }
    return list(dict.fromkeys(values.get(fact, [])))


def _outer_norms(spec: ModelSpec) -> list[NormSpec]:
    """The norm behind the layers, or those of the streams that the head reads a mix of."""
    if spec.final_norm is not None:
        return [spec.final_norm]
    return [layer.hyper.norm for layer in spec.layers if isinstance(layer.hyper, HyperConnectionSpec)]


def _check_tied_head(spec: ModelSpec, directory: Path, tensors: Mapping[str, TensorInfo]) -> None:
    """Check that a head which is stored beside a tied embedding is a copy of it.

    Raises:
        TensorShapeMismatch: The two differ: config.json and the file contradict each other.
    """
    embedding = spec.parameters["embed_tokens.weight"].pieces[0].name
    is_encoded = {item.name for item in spec.encoded}
    for name in filter(TIED_HEAD.fullmatch, tensors):
        if is_encoded.intersection((name, embedding)) or not are_alike(directory, tensors[name], tensors[embedding]):
            raise TensorShapeMismatch(
                f"by config.json (tie_word_embeddings) the head is {embedding}, but {name} is stored and differs from "
                "it; correct config.json, or set the override tie_word_embeddings to false (use the stored head) or "
                "true.",
                param=name,
            )


def _look_at_a_log(spec: ModelSpec, directory: Path, tensors: Mapping[str, TensorInfo], facts: Facts) -> None:
    """Warn when A_log looks like what the trainer stores without having used it.

    The trainer adds ln(1..H) to a zero-initialised tensor while building the model and saves only the
    tensor, so all stored values stay near 0, while the values in use were near A = -(1, 2, …, H).
    """
    largest, count = 0.0, 0
    for number, layer in enumerate(spec.layers):
        if not isinstance(layer.token_mixer, Mamba2Spec | Mamba3Spec) or layer.token_mixer.num_heads < 2:
            continue
        source = spec.parameters[f"layers.{number}.token_mixer.A_log"]
        info = tensors[source.pieces[0].name]
        largest = max(largest, *map(abs, read_values(directory, info)))
        count += 1
    if not count or not largest < A_LOG_NEAR_ZERO or facts.overrides.get("a_override") is not None:
        return
    evidence = f"A_log is used as it is stored; all values are near 0 (largest {largest:.2g})"
    facts.add("a_override", None, evidence, Confidence.LOW)
    if "a_override" not in facts.overrides:
        facts.warn(
            f"A_log is near 0 in all {count} Mamba layers (largest value {largest:.2g}): the oxidizr trainer computes "
            "with A = -(1, 2, …, H) and doesn't store that. If the text is poor, try the override a_override = -(1..H)."
        )


__all__ = ["CheckpointError", "CheckpointFile", "Inspection", "inspect_checkpoint"]
