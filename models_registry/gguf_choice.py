"""Choose among the GGUF files of a repository: by tag, by name, or the default one.

A tag is the quantisation in a file's name. Files that a split has made are one model. Projectors of images and sounds
(``mmproj``) and importance matrices (``imatrix``) are no models.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import PurePosixPath

from inference.errors import MissingTensor, NotFound, UnsupportedFormat
from models_registry.hub_reference import HubReference, is_gguf, is_plain_file

MAX_PARTS = 2048
"""Of a model that is taken: the header of each part is asked for by itself before the weights."""
JOIN_HINT = "choose another file, or join the parts with llama-gguf-split --merge and register the joined file"
_SHOWN = 20
_SHOWN_MISSING = 3
_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<total>\d{5})\.gguf\Z", re.IGNORECASE)
_TAG = re.compile(
    r"(?:^|[-._ ])(?P<tag>(?:UD-)?(?:I?Q\d+(?:_[A-Z0-9]+)*|TQ\d_\d|MXFP4(?:_[A-Z]+)*|NVFP4|BF16|F16|FP16|F32|FP32))"
    r"(?=$|[-. ])",
    re.IGNORECASE,
)
_PREFERRED = (
    "Q4_K_M", "UD-Q4_K_XL", "Q4_K_XL", "Q4_K_L", "Q4_K_S", "Q4_0", "Q4_1", "IQ4_NL", "IQ4_XS", "MXFP4_MOE", "MXFP4",
    "NVFP4", "Q5_K_M", "Q5_K_L", "Q5_K_S", "Q5_1", "Q5_0", "Q6_K", "Q6_K_L", "Q8_0", "Q3_K_L", "Q3_K_M", "Q3_K_S",
    "IQ3_M", "IQ3_S", "IQ3_XS", "IQ3_XXS", "Q2_K", "IQ2_M", "IQ2_S", "IQ2_XS", "IQ2_XXS", "IQ1_M", "IQ1_S", "BF16",
    "F16", "F32",
)  # fmt: skip
"""What is taken without a tag, the first that there is: Q4_K_M, else 4 bits, else more, else fewer, else floats."""


@dataclass(frozen=True, slots=True)
class GgufModel:
    """A model in a repository: a GGUF file, or all parts of one.

    Attributes:
        tag: The quantisation in its name, in capitals; empty: there is none.
        files: Paths in the repository, in the order of the parts.
        size_bytes: Of all files.
        num_missing: Parts that the repository lacks.
        missing: Names of the first of them.
    """

    tag: str
    files: tuple[str, ...]
    size_bytes: int
    num_missing: int = 0
    missing: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Path of the first file, which names the model."""
        return self.files[0]

    @property
    def num_parts(self) -> int:
        """Parts by the names of the files, also those that the repository lacks."""
        return len(self.files) + self.num_missing


def gguf_models(sizes: Mapping[str, int]) -> list[GgufModel]:
    """Return the GGUF models of a repository, the smallest first.

    Args:
        sizes: Bytes by path, of all files.
    """
    alone: list[GgufModel] = []
    parts: dict[tuple[str, str], dict[int, str]] = {}
    for name in sorted(filter(_is_model, sizes)):
        match = _PART.match(name)
        if match is None:
            alone.append(GgufModel(_tag(name), (name,), sizes[name]))
        elif 1 <= int(match["number"]) <= int(match["total"]):
            parts.setdefault((match["stem"], match["total"]), {})[int(match["number"])] = name
    joined = [_joined(stem, total, found, sizes) for (stem, total), found in parts.items()]
    return sorted([*alone, *joined], key=lambda model: (model.size_bytes, model.name))


def ignored_gguf_files(names: Sequence[str]) -> list[str]:
    """Return the GGUF files that are no models: projectors and importance matrices."""
    return sorted(name for name in names if is_gguf(name) and is_plain_file(name) and not _is_model(name))


def default_model(models: Sequence[GgufModel]) -> GgufModel:
    """Return the model that is taken where nothing says which."""
    order = {tag: number for number, tag in enumerate(_PREFERRED)}
    return min(models, key=lambda model: (_is_refused(model), order.get(model.tag, len(order)), model.name))


def choose_model(reference: HubReference, models: Sequence[GgufModel]) -> GgufModel:
    """Return the model that a reference means; without a choice the default one.

    Raises:
        NotFound: There is no GGUF file, none of that tag or name, or several; says what there is.
        MissingTensor: Parts of the file are missing.
        UnsupportedFormat: It has too many parts.
    """
    if not models:
        raise NotFound(
            f"{reference.repo_id} has no GGUF files; name the repository alone to pull its safetensors.", param="model"
        )
    found = _matching(reference, models) if reference.choice else [default_model(models)]
    if len(found) != 1:
        kind = "file" if reference.names_file else "tag"
        what = "which several files have" if found else "which it doesn't have"
        remedy = f"; name one of them with {reference.repo_id}:FILE.gguf" if found else ""
        raise NotFound(
            f"{reference.repo_id} was asked for the {kind} {reference.choice}, {what}; there are "
            f"{_shown(found or models, by_name=bool(found) or reference.names_file)}{remedy}.",
            param="model",
        )
    if found[0].num_parts > MAX_PARTS:
        raise UnsupportedFormat(
            f"{found[0].name} has {found[0].num_parts} parts, the limit is {MAX_PARTS}; {JOIN_HINT}.",
            param=found[0].name,
        )
    if found[0].num_missing:
        raise MissingTensor(
            f"{reference.repo_id} lacks {found[0].num_missing} of the parts of {found[0].name}: "
            f"{', '.join(found[0].missing)}; choose another file.",
            param=found[0].missing[0],
        )
    return found[0]


def reference_of(repo_id: str, model: GgufModel, models: Sequence[GgufModel]) -> HubReference:
    """Return the reference that names one of the models: by its tag where no other has it."""
    alike = [other for other in models if other.tag == model.tag]
    return HubReference(repo_id, model.tag if model.tag and len(alike) == 1 else model.name)


def choice_message(reference: HubReference, model: GgufModel, models: Sequence[GgufModel]) -> str:
    """Say which of several files is taken, and how to name another; empty: there is no choice, or it was made."""
    if reference.choice or len(models) < 2:
        return ""
    others = [other for other in models if other is not model]
    return (
        f"{reference.repo_id} has {len(models)} GGUF models; {PurePosixPath(model.name).name} is taken. For another "
        f"one name {reference.repo_id}:TAG; there are {_shown(others, by_name=False)}."
    )


def _is_refused(model: GgufModel) -> bool:
    return model.num_missing > 0 or model.num_parts > MAX_PARTS


def _is_model(name: str) -> bool:
    base = PurePosixPath(name).name.lower()
    return is_gguf(name) and is_plain_file(name) and "mmproj" not in base and "imatrix" not in base


def _joined(stem: str, total: str, found: Mapping[int, str], sizes: Mapping[str, int]) -> GgufModel:
    base, count = PurePosixPath(stem).name, int(total)
    absent = (number for number in range(1, count + 1) if number not in found)
    missing = tuple(f"{base}-{number:05d}-of-{total}.gguf" for number in islice(absent, _SHOWN_MISSING))
    files = tuple(found[number] for number in sorted(found))
    return GgufModel(_tag(files[0]), files, sum(sizes[name] for name in files), count - len(found), missing)


def _tag(name: str) -> str:
    """The last quantisation in a file's name, else in its folder's."""
    path = PurePosixPath(name)
    match = _PART.match(path.name)
    stem = match["stem"] if match is not None else path.name[: -len(".gguf")]
    for text in (stem, path.parent.name):
        found = [match["tag"] for match in _TAG.finditer(text)]
        if found:
            return found[-1].upper()
    return ""


def _matching(reference: HubReference, models: Sequence[GgufModel]) -> list[GgufModel]:
    choice = reference.choice.lower()
    if reference.names_file:
        by_path = [model for model in models if choice in (name.lower() for name in model.files)]
        return by_path or [
            model for model in models if choice in (PurePosixPath(name).name.lower() for name in model.files)
        ]
    for test in (_has_tag, _has_plain_tag, _has_in_name):
        found = [model for model in models if test(model, choice)]
        if found:
            return found
    return []


def _has_tag(model: GgufModel, tag: str) -> bool:
    return model.tag.lower() == tag


def _has_plain_tag(model: GgufModel, tag: str) -> bool:
    return model.tag.lower().removeprefix("ud-") == tag


def _has_in_name(model: GgufModel, tag: str) -> bool:
    """Whether the name has the tag before a dot or a dash, as llama.cpp looks for it."""
    return re.search(re.escape(tag) + r"[.-]", model.name.lower()) is not None


def _shown(models: Sequence[GgufModel], *, by_name: bool) -> str:
    names = [model.name if by_name or not model.tag else model.tag for model in models]
    return ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")
