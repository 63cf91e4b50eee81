"""Join the parts of a split GGUF file: metadata of the first one, tensors of all.

Source: ``tools/gguf-split`` of https://github.com/ggml-org/llama.cpp. Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from inference.errors import CorruptCheckpoint, MissingTensor
from inference.modelling.gguf.container import MAX_TENSORS, GgufFile, GgufTensor, Value, read_gguf
from inference.modelling.gguf.ggjt import is_ggjt, read_ggjt

COUNT_KEY, NUMBER_KEY, TENSORS_KEY = "split.count", "split.no", "split.tensors.count"


@dataclass(frozen=True, slots=True)
class GgufParts:
    """The headers of all parts; a file that isn't split is its only part.

    Attributes:
        files: In order; the first one has the metadata.
        tensors: Number of the part and place in it, by name.
    """

    files: tuple[GgufFile, ...]
    tensors: Mapping[str, tuple[int, GgufTensor]]

    @property
    def head(self) -> GgufFile:
        """The part with the metadata."""
        return self.files[0]

    @property
    def keys(self) -> Mapping[str, Value]:
        """Metadata by key."""
        return self.head.keys


def read_parts(paths: Sequence[Path]) -> GgufParts:
    """Read the headers of all parts of one file.

    Args:
        paths: All parts, in the order of their numbers.

    Raises:
        MissingTensor: A part is missing, by what the parts say.
        CorruptCheckpoint: A part breaks the format, or belongs to other ones.
        UnsupportedFormat: See ``read_gguf`` and ``read_ggjt``.
    """
    files = tuple(read_ggjt(path) if is_ggjt(path) else read_gguf(path) for path in paths)
    tensors: dict[str, tuple[int, GgufTensor]] = {}
    for number, file in enumerate(files):
        _check_part(file, number, len(files))
        for name, place in file.tensors.items():
            if name in tensors:
                raise CorruptCheckpoint(
                    f"tensor {name} is in {paths[tensors[name][0]].name} and in {file.path.name}.", param=name
                )
            tensors[name] = (number, place)
        if len(tensors) > MAX_TENSORS:
            raise CorruptCheckpoint(
                f"the parts up to {file.path.name} hold more than {MAX_TENSORS} tensors, which is the limit.",
                param=file.path.name,
            )
    stated = files[0].keys.get(TENSORS_KEY)
    if stated is not None and stated != len(tensors):
        raise MissingTensor(
            f"{paths[0].name} states {str(stated)[:30]} tensors in all its parts, which have {len(tensors)}; download "
            "all parts again.",
            param=paths[0].name,
        )
    return GgufParts(files, tensors)


def _check_part(file: GgufFile, number: int, given: int) -> None:
    name = file.path.name
    count, stated = file.keys.get(COUNT_KEY, 1), file.keys.get(NUMBER_KEY, 0)
    if count == given and stated == number:
        return
    shown, total = str(stated)[:30], str(count)[:30]
    if given == 1:
        raise MissingTensor(
            f"{name} is a part of a split GGUF file ({NUMBER_KEY} {shown}, {COUNT_KEY} {total}), and the others "
            "weren't found; put all parts into one directory under names that end in -00001-of-000NN.gguf.",
            param=name,
        )
    raise CorruptCheckpoint(
        f"{name} should be part {number} of {given}, but says that it is part {shown} of {total} ({NUMBER_KEY}, "
        f"{COUNT_KEY}); download the parts again.",
        param=name,
    )
