"""Write and read saved states: one file each, complete or not there, readable by its owner only."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import orjson

from inference.engine.prefix_cache.model_key import file_digest
from inference.engine.prefix_cache.state_access import Payload
from inference.engine.saved_state import SavedState
from inference.errors import InvalidRequest, RequestTooLarge, StorageFull
from inference.host.cache_folder import cache_folder
from inference.host.client_json import parse_json
from inference.host.disk import try_lock
from inference.host.units import format_bytes
from inference.llm.loading import choose_state_dtype
from inference.llm.options import LLMOptions
from inference.llm.state_header import (
    StateHeader,
    StateIdentity,
    StateSizes,
    header_of,
    metadata_of,
    open_state,
    read_state_header,
)
from inference.modelling.families.config import TensorInfo
from inference.modelling.quantisation import REVISION
from inference.modelling.spec import ModelSpec
from inference.modelling.specs.parts import Dtype
from inference.values.cache_control import marks_of
from inference.values.images import images_of
from inference.values.messages import PromptMessage

_READ_BYTES = 16 << 20
_WORK_PREFIX, _WORK_FILE = ".state-", "state"
"""The directory beside a state in which it is written, and its name there."""
UNLOCKED_S = 60.0
"""Age in seconds of such a directory that is removed when nobody locks it; a new one is locked sooner."""
MIN_MEMO_BYTES = 256 << 20
"""Digests of more weights than this are kept in the user's cache folder; fewer are read within a second."""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class PromptState:
    """The state of a prompt, from which any number of generations go on.

    The state is the one before the last token: that token is computed again when a generation begins, so that one can
    go on without any text behind.

    Attributes:
        token_ids: All tokens of the prompt.
        state: State after all of them but the last.
        identity: The model that it belongs to.
        created: Unix time.
        conversation: Members ``messages`` and ``template_kwargs`` of the prompt; None: it was a text or token ids.
    """

    token_ids: tuple[int, ...]
    state: SavedState
    identity: StateIdentity
    created: int
    conversation: PromptMessage | None = None

    @property
    def digest(self) -> str:
        """Digest of tokens, state and conversation."""
        last = self.token_ids[-1].to_bytes(8, "little", signed=True)
        return hashlib.sha256(self.state.digest + last + _conversation_bytes(self.conversation)).hexdigest()

    @property
    def num_bytes(self) -> int:
        """Bytes of the state and its tokens."""
        return self.state.size_bytes + 8 * len(self.token_ids)


def identity_of(
    spec: ModelSpec, weight_files: Sequence[Path], dtype: Dtype, options: LLMOptions, merge: str = ""
) -> StateIdentity:
    """Return the identity of a model that is run so; reads all weights unless their digests are known.

    Args:
        merge: Digest of what is merged into the weights.
    """
    memo_dir = None
    if options.cache_dir is not None:
        memo_dir = options.cache_dir / "digests"
    elif sum(path.stat().st_size for path in weight_files) >= MIN_MEMO_BYTES:
        memo_dir = cache_folder("digests")
    digests = [*sorted(file_digest(path, memo_dir) for path in weight_files), *((merge,) if merge else ())]
    state_dtype = choose_state_dtype(spec, options)
    layout = [
        [
            part.name,
            part.per,
            list(part.shape),
            "model" if part.dtype == "model" else part.stored_dtype(dtype, state_dtype),
            dtype,
        ]
        for layer in spec.layers
        for part in layer.state()
    ]
    return StateIdentity(
        weights=_sha256("\n".join(digests)),
        # No state depends on the part that sees, because it holds no images.
        spec=_sha256(json.dumps(replace(spec.without_head(), vision=None).to_dict(), sort_keys=True)),
        dtype=dtype,
        quant=options.quant,
        device=options.device_kind,
        block_size=str(options.block_size),
        revision=str(REVISION),
        layout=_sha256(json.dumps(layout)),
        state_dtype=state_dtype,
    )


def write_state_file(path: Path, prompt: PromptState, model: str = "") -> int:
    """Write a state to a file, in place of an earlier state of that name.

    Args:
        model: Name of the model, for people.

    Returns:
        The file's size in bytes.

    Raises:
        InvalidRequest: The path can't be written, or is something else than a saved state.
        StorageFull: The disk has no room.
    """
    check_target(path)
    sweep_abandoned(path.parent)
    work: Path | None = None
    lock: int | None = None
    try:
        work = Path(tempfile.mkdtemp(prefix=_WORK_PREFIX, dir=path.parent))  # only its owner can enter it
        lock = os.open(work, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try_lock(lock)  # until this process has ended, however it does
        partial = work / _WORK_FILE
        with partial.open("xb") as file:
            partial.chmod(0o600)  # the file has the prompt in it
            for piece in state_content(prompt, model):
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        size = partial.stat().st_size
        check_target(path)
        partial.replace(path)
        return size
    except OSError as error:
        if error.errno not in (None, errno.ENOSPC, errno.EDQUOT):
            raise InvalidRequest(
                f"{str(path)[:200]!r} can't be written: {error.strerror}; choose another place.", param="output"
            ) from None
        needed = format_bytes(prompt.num_bytes)
        raise StorageFull(
            f"the state of {needed} can't be written to {str(path)[:200]!r} ({str(error)[:120]}); free some room or "
            "choose another directory.",
            param="output",
        ) from error
    finally:
        if work is not None:
            shutil.rmtree(work, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def sweep_abandoned(directory: Path) -> None:
    """Remove what killed processes of this user left in a directory when they wrote a state: nobody locks it."""
    with suppress(OSError):
        for path in list(directory.glob(f"{_WORK_PREFIX}*")):
            with suppress(OSError):
                _remove_abandoned(path)


def _remove_abandoned(path: Path) -> None:
    found = path.lstat()
    is_old = found.st_mtime < time.time() - UNLOCKED_S
    if not (stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and is_old):
        return
    if {entry.name for entry in path.iterdir()} - {_WORK_FILE}:
        return  # it isn't ours, whatever its name
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if try_lock(descriptor):
            shutil.rmtree(path)
    finally:
        os.close(descriptor)


def state_content(prompt: PromptState, model: str = "") -> list[memoryview]:
    """Return what ``write_state_file`` writes: the header, then the tensors, without a copy of the state."""
    # As safetensors does: the most aligned first, then by name.
    tensors = dict(sorted(_tensors(prompt).items(), key=lambda item: (-item[1].itemsize, item[0])))
    header: dict[str, Any] = {"__metadata__": _metadata(prompt, model)}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.nbytes
        header[name] = {
            "dtype": "I64" if tensor.itemsize > 1 else "U8",
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    head = memoryview(len(text).to_bytes(8, "little") + text)
    return [head, *(tensor.view(np.uint8).data for tensor in tensors.values())]


def _metadata(prompt: PromptState, model: str) -> dict[str, str]:
    return metadata_of(prompt.identity, prompt.created, model, prompt.digest)


def _tensors(prompt: PromptState) -> dict[str, np.ndarray]:
    tensors: dict[str, np.ndarray] = {"token_ids": np.array(prompt.token_ids, np.int64)}
    for name, part in (("blocks", prompt.state.blocks), ("slot", prompt.state.slot)):
        if part.size:
            tensors[name] = part
    if prompt.conversation is not None:
        tensors["conversation"] = np.frombuffer(_conversation_bytes(prompt.conversation), np.uint8)
    return tensors


def check_target(path: Path) -> None:
    """Refuse a path at which no state can be written.

    Raises:
        InvalidRequest: It is a link, a pipe, a directory, or a file that is no saved state; or has no directory.
    """
    shown = repr(str(path)[:200])
    try:
        found: int | None = path.lstat().st_mode
    except FileNotFoundError:
        found = None
    except (OSError, ValueError) as error:
        problem = str(error)[:120]
        raise InvalidRequest(f"{shown} can't be written: {problem}; choose another name.", param="output") from None
    if found is not None and not stat.S_ISREG(found):
        raise InvalidRequest(f"{shown} is not a regular file; choose a name that is free.", param="output")
    if found is not None:
        try:
            read_state_header(path)
        except InvalidRequest:
            raise InvalidRequest(
                f"{shown} exists and isn't a saved state; choose another name.", param="output"
            ) from None
    if not path.parent.is_dir():
        raise InvalidRequest(f"{shown} is in no directory; make it first.", param="output")


def read_state_file(path: Path, identity: StateIdentity, sizes: StateSizes, source: str | None = None) -> PromptState:
    """Read a state of the model with this identity; a file of other sizes isn't read.

    Args:
        source: The state in messages; None: the file's name.

    Raises:
        InvalidRequest: The file is no whole saved state, or belongs to another model.
    """
    descriptor = open_state(path, source)
    shown = source or path.name
    try:
        header = header_of(descriptor, shown)
        identity.check(header.identity, shown)
        sizes.check(header, shown)
        parts = {name: _read(descriptor, info, shown) for name, info in header.tensors.items()}
    finally:
        os.close(descriptor)
    return _prompt_state(header, parts, shown)


def _prompt_state(header: StateHeader, parts: dict[str, Payload], name: str) -> PromptState:
    token_ids = tuple(parts["token_ids"].view("<i8").tolist())
    nothing = np.empty(0, np.uint8)
    state = SavedState(token_ids[:-1], parts.get("blocks", nothing), parts.get("slot", nothing))
    conversation = _read_conversation(parts["conversation"], name) if "conversation" in parts else None
    prompt = PromptState(token_ids, state, header.identity, header.created, conversation)
    if prompt.digest != header.digest:
        raise InvalidRequest(f"{name} is damaged (its checksum differs); save the state again.", param="state")
    return prompt


def _conversation_bytes(conversation: PromptMessage | None) -> bytes:
    return b"" if conversation is None else orjson.dumps(conversation, option=orjson.OPT_SORT_KEYS)


def _read_conversation(content: Payload, name: str) -> PromptMessage:
    """Parse the messages of a file: any that a request may hold, without what no saved state keeps.

    Marks and images would be work without the bounds that requests have.
    """
    try:
        found = parse_json(content.tobytes())
        messages, kwargs = found["messages"], found.get("template_kwargs", {})
        is_sound = found.keys() <= {"messages", "template_kwargs"} and isinstance(kwargs, dict)
        is_sound = is_sound and isinstance(messages, list) and all(isinstance(item, dict) for item in messages)
        if is_sound and not marks_of(messages) and not images_of(messages):
            return cast("PromptMessage", found)
    except (InvalidRequest, RequestTooLarge, TypeError, KeyError, AttributeError):
        pass
    raise InvalidRequest(f"{name} holds messages that can't be read; save the state again.", param="state")


def _read(descriptor: int, info: TensorInfo, name: str) -> Payload:
    content = np.empty(info.end - info.begin, np.uint8)
    view, done = content.data, 0
    while done < len(view):
        count = os.preadv(descriptor, [view[done : done + _READ_BYTES]], info.begin + done)
        if not count:
            raise InvalidRequest(f"{name} changed while it was read; try again.", param="state")
        done += count
    return content


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
