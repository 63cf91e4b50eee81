"""Search the HuggingFace hub, and show what a pull would fetch before it fetches weights.

Of safetensors config.json says what they are; of GGUF the headers of the files.

Both talk to the hub that pulls use (HF_ENDPOINT, or the official one) and to no other host. Needs no Django.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inference.errors import BlazrError, CheckpointError, InvalidRequest, Unavailable
from models_registry.detection.config_check import check_config
from models_registry.detection.inspection import Inspection
from models_registry.detection.printable import printable
from models_registry.gguf_choice import GgufModel, gguf_models, ignored_gguf_files, reference_of
from models_registry.hub import SHA256, ChosenFiles, choose_files, gated, hub_model, offline_error, remote_files
from models_registry.hub_files import cached_bytes, free_cache_bytes
from models_registry.hub_headers import inspect_headers
from models_registry.hub_reference import HubReference

MAX_FOUND = 100
SEARCH_S, LOOK_UP_S = 4.0, 8.0
"""Seconds for the hub to take a search, or a look-up that a person waits for, and again to answer it."""
MAX_OPTIONS = 200
"""Most GGUF files that a preview lists; a repository may have any number."""
MAX_CONFIG_BYTES = 1 << 20
_DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1}
_QUANT_BYTES = {"int8": 1.07, "int4": 0.57}
"""Bytes of a weight with its scales, about; embeddings and norms, which stay wider, are not counted apart."""


@dataclass(frozen=True, slots=True)
class FoundModel:
    """A repository that a search has found."""

    repo_id: str
    downloads: int
    likes: int
    updated: str
    is_gated: bool
    formats: tuple[str, ...]

    @property
    def can_be_pulled(self) -> bool:
        """Whether it has weights that a pull takes."""
        return bool({"safetensors", "gguf"} & set(self.formats))


@dataclass(frozen=True, slots=True)
class GgufOption:
    """A GGUF model of a repository that a pull could take.

    Attributes:
        reference: What names it: ``ORG/NAME:TAG``, or with a file's path.
        tag: The quantisation in its name; empty: there is none.
        files: Its parts.
        num_missing: Parts that the repository lacks.
        is_chosen: Whether this pull would take it.
    """

    reference: str
    tag: str
    files: tuple[str, ...]
    size_bytes: int
    num_missing: int
    is_chosen: bool


@dataclass(frozen=True, slots=True)
class PullPreview:
    """What a pull would fetch.

    Attributes:
        files: Names and sizes of the files that serving needs.
        omitted_bytes: Bytes of the repository's other files.
        cached_bytes: How much of them the cache has.
        free_disk_bytes: Of the disk that the cache is on.
        licence: As the hub names it; empty: it doesn't.
        is_gated: Whether its terms have to be accepted on the hub.
        model_type: As config.json says, or a GGUF file's header; empty: there is none.
        family: The type that it is read as; empty: none, or its tensors have to decide.
        refusal: Why a pull would be refused, by its files' names, config.json or header; empty: no reason was found.
        sizes: Figures of config.json or of the header, by the names of config.json.
        weights_bytes: Memory that the weights take as they are stored, by their files' sizes.
        quantised_bytes: The same if they are quantised while loading, about.
        format: ``safetensors`` or ``GGUF``; empty: there are no weights that are read.
        choice_message: Says that one of several GGUF files is taken; empty: there is no choice, or it was made.
        options: The GGUF models of the repository, the smallest first; ``MAX_OPTIONS`` of them and the chosen one.
        ignored_files: GGUF files that are no models: projectors of images, importance matrices.
        warnings: What the header shows that an operator should know.
    """

    repo_id: str
    commit: str
    files: tuple[tuple[str, int], ...]
    omitted_bytes: int
    cached_bytes: int
    free_disk_bytes: int
    licence: str
    is_gated: bool
    model_type: str
    family: str
    refusal: str
    sizes: Mapping[str, int | str]
    weights_bytes: int
    quantised_bytes: Mapping[str, int]
    format: str = "safetensors"
    choice_message: str = ""
    options: tuple[GgufOption, ...] = ()
    ignored_files: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def total_bytes(self) -> int:
        """Bytes of the download."""
        return sum(size for _, size in self.files)


def hub_search(text: str, limit: int = 20, *, endpoint: str | None = None) -> list[FoundModel]:
    """Return the repositories of the hub that match a text, most downloaded first.

    The hub is asked once: the library's ``list_models`` would ask a hub that is away six times, for 23 s.

    Raises:
        InvalidRequest: The limit is out of its range, or the text is empty.
        Unavailable: The hub can't be reached.
    """
    from huggingface_hub import HfApi, ModelInfo
    from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status  # type: ignore[attr-defined]

    if not 1 <= limit <= MAX_FOUND:
        raise InvalidRequest(f"--limit is {limit}, it must be from 1 to {MAX_FOUND}.", param="limit")
    if not text.strip():
        raise InvalidRequest("the search is empty; give a part of a model's name.", param="text")
    try:
        query: dict[str, str | int] = {"search": text, "sort": "downloads", "limit": limit}
        address = f"{HfApi(endpoint=endpoint).endpoint}/api/models"
        reply = get_session().get(address, params=query, headers=build_hf_headers(), timeout=SEARCH_S)
        hf_raise_for_status(reply)
        infos = (ModelInfo(**item) for item in reply.json()[:limit])  # type: ignore[no-untyped-call]
        return [_found(info) for info in infos]
    except Exception as error:
        raise Unavailable(f"the hub can't be searched ({offline_error(error)}).") from error


def hub_preview(
    name: str, revision: str | None = None, *, endpoint: str | None = None, cache_dir: Path | None = None
) -> PullPreview:
    """Return what a pull would fetch; only config.json is fetched, or headers of GGUF files.

    Args:
        name: As ``HubReference.parse`` takes it.

    Raises:
        InvalidRequest, NotFound, PermissionRefused: As ``models_registry.hub.hub_pull``.
        Unavailable: The hub can't be reached.
    """
    reference = HubReference.parse(name)
    repo_id = reference.repo_id
    try:
        info = hub_model(repo_id, revision, endpoint, timeout_s=LOOK_UP_S)
    except BlazrError:
        raise
    except Exception as error:
        raise Unavailable(f"{repo_id} can't be looked up ({offline_error(error)}).") from error
    sizes = {sibling.rfilename: sibling.size or 0 for sibling in info.siblings or ()}
    chosen, refusal = _chosen(reference, sizes)
    seen = _Seen(refusal=refusal)
    if chosen.is_gguf:
        seen = _by_headers(repo_id, info, chosen, endpoint, cache_dir)
    elif not refusal:
        config = _config(repo_id, info.sha or "main", sizes, endpoint, cache_dir)
        weights = sum(sizes[name] for name in chosen.names if name.endswith(".safetensors"))
        seen = _by_config(config, weights)
    models = gguf_models(sizes)
    total = sum(sizes[name] for name in chosen.names)
    return PullPreview(
        repo_id=repo_id,
        commit=info.sha or "",
        files=tuple((name, sizes[name]) for name in chosen.names),
        omitted_bytes=sum(sizes.values()) - total,
        cached_bytes=_cached(repo_id, info, chosen.names, cache_dir),
        free_disk_bytes=free_cache_bytes(cache_dir),
        licence=_licence(info),
        is_gated=bool(info.gated),
        model_type=seen.model_type,
        family=seen.family,
        refusal=seen.refusal,
        sizes=seen.sizes,
        weights_bytes=total if chosen.is_gguf else seen.weights_bytes,
        quantised_bytes=seen.quantised_bytes,
        format="GGUF" if chosen.is_gguf else "safetensors" if chosen.names else "",
        choice_message=chosen.choice_message,
        options=tuple(_option(repo_id, model, models, chosen) for model in _listed(models, chosen)),
        ignored_files=tuple(ignored_gguf_files(list(sizes))[:MAX_OPTIONS]),
        warnings=seen.warnings,
    )


def _chosen(reference: HubReference, sizes: Mapping[str, int]) -> tuple[ChosenFiles, str]:
    """Return the files that a pull would fetch, and why there are none.

    Raises:
        NotFound: There is no such GGUF file.
    """
    try:
        return choose_files(reference, sizes), ""
    except CheckpointError as error:
        return ChosenFiles((), is_gguf=False), error.message


def _listed(models: Sequence[GgufModel], chosen: ChosenFiles) -> list[GgufModel]:
    return [*models[:MAX_OPTIONS], *(model for model in models[MAX_OPTIONS:] if model.files == chosen.names)]


def _option(repo_id: str, model: GgufModel, models: Sequence[GgufModel], chosen: ChosenFiles) -> GgufOption:
    reference = str(reference_of(repo_id, model, models))
    return GgufOption(
        reference, model.tag, model.files, model.size_bytes, model.num_missing, is_chosen=model.files == chosen.names
    )


@dataclass(frozen=True, slots=True)
class _Seen:
    """What config.json or headers say; see ``PullPreview``."""

    model_type: str = ""
    family: str = ""
    refusal: str = ""
    sizes: Mapping[str, int | str] = field(default_factory=dict)
    weights_bytes: int = 0
    quantised_bytes: Mapping[str, int] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def _by_config(config: Mapping[str, Any], num_bytes: int) -> _Seen:
    inner = config.get("text_config") if isinstance(config.get("text_config"), dict) else {}
    facts = {**config, **(inner or {})}
    family, refusal = _verdict(config)
    is_quantised = isinstance(config.get("quantization_config"), dict)
    width = _DTYPE_BYTES.get(str(facts.get("dtype") or facts.get("torch_dtype") or "").removeprefix("torch."))
    quantised = {} if is_quantised or width is None else _QUANT_BYTES
    return _Seen(
        model_type=str(config.get("model_type") or "")[:80],
        family=family,
        refusal=refusal,
        sizes=_shown_sizes(facts),
        weights_bytes=num_bytes,
        quantised_bytes={name: int(num_bytes / (width or 1) * each) for name, each in quantised.items()},
    )


def _by_headers(repo_id: str, info: Any, chosen: ChosenFiles, endpoint: str | None, cache_dir: Path | None) -> _Seen:
    try:
        files = remote_files(info, chosen.names)
        found = inspect_headers(repo_id, info.sha or "main", files, endpoint=endpoint, cache_dir=cache_dir)
    except CheckpointError as error:
        return _Seen(refusal=printable(error.message))
    spec = found.spec
    sizes: dict[str, int | str] = {
        "num_hidden_layers": len(spec.layers),
        "hidden_size": spec.hidden_size,
        "vocab_size": spec.vocab_size,
        "max_position_embeddings": spec.max_position_embeddings,
        "num_parameters": found.num_parameters,
        "quantisation": _fact(found, "gguf.file_type") or _fact(found, "quantisation"),
    }
    quantised = {name: int(found.num_parameters * each) for name, each in _QUANT_BYTES.items()}
    total = found.size_bytes
    return _Seen(
        model_type=_fact(found, "gguf.architecture"),
        family=spec.model_type,
        sizes=sizes,
        quantised_bytes={name: size for name, size in quantised.items() if size < total},
        warnings=found.warnings,
    )


def _fact(found: Inspection, name: str) -> str:
    return next((str(fact.value)[:80] for fact in found.facts if fact.name == name), "")


def _verdict(config: Mapping[str, Any]) -> tuple[str, str]:
    """Return the type that the checkpoint is read as, and why it would be refused."""
    try:
        return check_config(config), ""
    except CheckpointError as error:
        return "", error.message


def _cached(repo_id: str, info: Any, names: Collection[str], cache_dir: Path | None) -> int:
    """Return how many bytes of the large files needn't be fetched; a pull keeps them under the id that it asks for."""
    large = [sibling for sibling in info.siblings or () if sibling.rfilename in names and sibling.lfs is not None]
    digests = [(sibling.lfs.sha256, sibling.size or 0) for sibling in large if SHA256.match(sibling.lfs.sha256)]
    return sum(cached_bytes(repo_id, digest, size_bytes=size, cache_dir=cache_dir) for digest, size in digests)


def _licence(info: Any) -> str:
    found = (str(tag).removeprefix("license:") for tag in info.tags or () if str(tag).startswith("license:"))
    return printable(next(found, ""))[:80]


def _config(
    repo_id: str, commit: str, sizes: Mapping[str, int], endpoint: str | None, cache_dir: Path | None
) -> dict[str, Any]:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import GatedRepoError

    if not 0 < sizes.get("config.json", 0) <= MAX_CONFIG_BYTES:
        return {}
    try:
        path = hf_hub_download(repo_id, "config.json", revision=commit, endpoint=endpoint, cache_dir=cache_dir)
    except GatedRepoError:
        raise gated(repo_id) from None
    except Exception as error:
        raise Unavailable(f"config.json of {repo_id} can't be fetched ({offline_error(error)}).") from error
    try:
        found = json.loads(Path(path).read_bytes())
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _shown_sizes(facts: Mapping[str, Any]) -> dict[str, int | str]:
    names = (
        "num_hidden_layers", "hidden_size", "vocab_size", "max_position_embeddings", "num_local_experts",
        "num_experts", "torch_dtype", "dtype",
    )  # fmt: skip
    return {
        name: value if isinstance(value, int) else str(value)[:20]
        for name in names
        if isinstance(value := facts.get(name), int | str) and not isinstance(value, bool)
    }


def _found(info: Any) -> FoundModel:
    tags = {str(tag) for tag in info.tags or ()}
    return FoundModel(
        repo_id=str(info.id),
        downloads=int(info.downloads or 0),
        likes=int(info.likes or 0),
        updated="" if info.last_modified is None else f"{info.last_modified:%Y-%m-%d}",
        is_gated=bool(info.gated),
        formats=tuple(name for name in ("safetensors", "gguf", "mlx", "onnx") if name in tags),
    )
