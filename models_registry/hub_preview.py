"""Search the HuggingFace hub, and show what a pull would fetch before it fetches weights.

Both talk to the hub that pulls use (HF_ENDPOINT, or the official one) and to no other host. Needs no Django.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inference.errors import BlazrError, CheckpointError, InvalidRequest, Unavailable
from models_registry.detection.config_check import check_config
from models_registry.detection.printable import printable
from models_registry.hub import SHA256, files_to_serve, gated, hub_model, offline_error
from models_registry.hub_files import cached_bytes, free_cache_bytes

MAX_FOUND = 100
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
        return "safetensors" in self.formats


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
        model_type: As config.json says; empty: there is none.
        family: The type that it is read as; empty: none, or its tensors have to decide.
        refusal: Why it would be refused by its config.json; empty: nothing shows.
        sizes: Figures of config.json, by its names.
        weights_bytes: Memory that the weights take as they are stored, by their files' sizes.
        quantised_bytes: The same if they are quantised while loading, about.
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

    @property
    def total_bytes(self) -> int:
        """Bytes of the download."""
        return sum(size for _, size in self.files)

    @property
    def problem(self) -> str:
        """Why a pull would fail, or the model could not be served; empty: nothing shows."""
        if not any(name.endswith(".safetensors") for name, _ in self.files):
            return "it has no .safetensors weights at its top level, so it can't be pulled"
        return self.refusal


def hub_search(text: str, limit: int = 20, *, endpoint: str | None = None) -> list[FoundModel]:
    """Return the repositories of the hub that match a text, most downloaded first.

    Raises:
        InvalidRequest: The limit is out of its range, or the text is empty.
        Unavailable: The hub can't be reached.
    """
    from huggingface_hub import HfApi

    if not 1 <= limit <= MAX_FOUND:
        raise InvalidRequest(f"--limit is {limit}, it must be from 1 to {MAX_FOUND}.", param="limit")
    if not text.strip():
        raise InvalidRequest("the search is empty; give a part of a model's name.", param="text")
    try:
        found = HfApi(endpoint=endpoint).list_models(search=text, sort="downloads", limit=limit)
        return [_found(info) for info in itertools.islice(found, limit)]
    except Exception as error:
        raise Unavailable(f"the hub can't be searched ({offline_error(error)}).") from error


def hub_preview(
    repo_id: str, revision: str | None = None, *, endpoint: str | None = None, cache_dir: Path | None = None
) -> PullPreview:
    """Return what a pull would fetch; only config.json is fetched.

    Raises:
        InvalidRequest, NotFound, PermissionRefused: As ``models_registry.hub.hub_pull``.
        Unavailable: The hub can't be reached.
    """
    try:
        info = hub_model(repo_id, revision, endpoint)
    except BlazrError:
        raise
    except Exception as error:
        raise Unavailable(f"{repo_id} can't be looked up ({offline_error(error)}).") from error
    sizes = {sibling.rfilename: sibling.size or 0 for sibling in info.siblings or ()}
    names = files_to_serve(sizes)
    config = _config(repo_id, info.sha or "main", sizes, endpoint, cache_dir)
    inner = config.get("text_config") if isinstance(config.get("text_config"), dict) else {}
    facts = {**config, **(inner or {})}
    family, refusal = _verdict(config)
    weights = sum(sizes[name] for name in names if name.endswith(".safetensors"))
    is_quantised = isinstance(config.get("quantization_config"), dict)
    width = _DTYPE_BYTES.get(str(facts.get("dtype") or facts.get("torch_dtype") or "").removeprefix("torch."))
    quantised = {} if is_quantised or width is None else _QUANT_BYTES
    return PullPreview(
        repo_id=repo_id,
        commit=info.sha or "",
        files=tuple((name, sizes[name]) for name in names),
        omitted_bytes=sum(sizes.values()) - sum(sizes[name] for name in names),
        cached_bytes=_cached(repo_id, info, names, cache_dir),
        free_disk_bytes=free_cache_bytes(cache_dir),
        licence=_licence(info),
        is_gated=bool(info.gated),
        model_type=str(config.get("model_type") or "")[:80],
        family=family,
        refusal=refusal,
        sizes=_shown_sizes(facts),
        weights_bytes=weights,
        quantised_bytes={name: int(weights / (width or 1) * each) for name, each in quantised.items()},
    )


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
