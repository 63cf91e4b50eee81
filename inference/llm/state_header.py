"""StateHeader: what the header of a saved state's file says, read with bounds and without torch.

A saved state is one safetensors file with the tensors ``token_ids`` (I64), ``blocks`` (U8, paged state), ``slot``
(U8, recurrent state; either is left out if the model has none) and ``conversation`` (U8, JSON; only after messages).
The header's metadata has the members of ``StateIdentity`` and of ``StateHeader``, as strings.
Nothing here trusts the file.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path

from inference.errors import CorruptCheckpoint, InvalidRequest, UnsupportedFormat
from inference.modelling.families.config import TensorInfo
from models_registry.detection.safetensors_header import read_open_header

FORMAT = "blazr-state"
VERSION = "1"
MAX_TOKENS = 1 << 28
MAX_MODEL_CHARS = 200
MAX_CONVERSATION_BYTES = 16 << 20
MAX_SERVED_BYTES = 512 << 20
"""Most bytes of a state, with its tokens, that a server saves and goes on from: the engine's thread copies a state, and
other requests wait for that."""
MAX_SERVED_FILE_BYTES = MAX_SERVED_BYTES + MAX_CONVERSATION_BYTES + (1 << 20)
"""Most bytes of such a state's file, which has a header and messages besides."""
_TOKEN_BYTES = 8
_SHA256 = r"[0-9a-f]{64}"
_PATTERNS = {
    "weights": _SHA256,
    "spec": _SHA256,
    "layout": _SHA256,
    "digest": _SHA256,
    "dtype": r"[a-z0-9]{1,16}",
    "quant": r"[a-z0-9]{1,16}",
    "device": r"[a-z]{1,16}",
    "adapter": rf"({_SHA256})?",
    "state_dtype": r"([a-z0-9]{1,16})?",
    "block_size": r"[1-9][0-9]{0,4}",
    "revision": r"[0-9A-Za-z.]{1,16}",
    "created": r"(0|[1-9][0-9]{0,10})",
}
_WORDS = {
    "weights": "other weights",
    "spec": "other detected facts of the model (family, sizes, overrides)",
    "dtype": "dtype",
    "state_dtype": "state_dtype",
    "quant": "quant",
    "device": "device",
    "block_size": "block_size",
    "revision": "revision of quantisation",
    "layout": "another layout of the state (another version of blazr)",
    "adapter": "LoRA adapter",
}
_REMEDIES = {
    "dtype": "load the model with {}",
    "state_dtype": "load the model with {}",
    "quant": "load the model with {}",
    "device": "use the same device",
    "adapter": "name the adapter that it was saved with",
}


@dataclass(frozen=True, slots=True)
class StateIdentity:
    """Everything that must agree between a saved state and the model that goes on from it.

    Attributes:
        weights: SHA-256 of the weight files' SHA-256s.
        spec: SHA-256 of the spec with the user's overrides.
        dtype, quant, device, block_size: As the model is run; ``device`` is cpu or cuda.
        revision: Revision of our quantisation.
        layout: SHA-256 of the layout of a state's bytes.
        adapter: Digest of the LoRA adapter that the tokens went through; empty: none.
        state_dtype: What recurrent states are stored in; files without the member are older and hold float32.
    """

    weights: str
    spec: str
    dtype: str
    quant: str
    device: str
    block_size: str
    revision: str
    layout: str
    adapter: str = ""
    state_dtype: str = "float32"

    def check(self, saved: StateIdentity, source: str) -> None:
        """Refuse a state of another model, or of the same model run otherwise.

        Args:
            saved: Identity of the state.
            source: The state's name in the message.

        Raises:
            InvalidRequest: They differ; the message has the first difference and a remedy.
        """
        for name, words in _WORDS.items():
            theirs, ours = getattr(saved, name), getattr(self, name)
            if theirs == ours:
                continue
            if name == "adapter":
                difference = f"{source} was saved {_through(theirs)}, the request goes {_through(ours)}"
            elif name in ("weights", "spec", "layout"):
                difference = f"{source} was saved with {words}: {theirs[:12]}…, this model's are {ours[:12]}…"
            else:
                difference = f"{source} was saved with {words} {theirs}, this model is loaded with {ours}"
            option = f"--{name.replace('_', '-')} {theirs}"
            remedy = _REMEDIES.get(name, "use the model that it was saved with").format(option)
            raise InvalidRequest(f"{difference}; {remedy}, or save the state again.", param="state")


def _through(adapter: str) -> str:
    return f"through the adapter {adapter[:12]}…" if adapter else "through no adapter"


@dataclass(frozen=True, slots=True)
class StateSizes:
    """Sizes of a model's states, which bound what is read of a file.

    Attributes:
        token_bytes: Bytes of paged state of one token.
        slot_bytes: Bytes of recurrent state.
        max_tokens: Most tokens of a sequence.
    """

    token_bytes: int
    slot_bytes: int
    max_tokens: int

    def check(self, header: StateHeader, source: str) -> None:
        """Refuse a state that is too long for the model, or has other sizes than the model's.

        Raises:
            InvalidRequest: It is, or has.
        """
        if header.num_tokens > self.max_tokens:
            raise InvalidRequest(
                f"{source} goes on from {header.num_tokens:,} tokens, the model is loaded for {self.max_tokens:,}; "
                "raise max_model_len, or save the state of a shorter text.",
                param="state",
            )
        found = header.blocks_bytes, header.slot_bytes
        expected = (header.num_tokens - 1) * self.token_bytes, self.slot_bytes
        if found != expected:
            raise InvalidRequest(
                f"{source} has {found[0]:,} bytes of paged and {found[1]:,} of recurrent state, {header.num_tokens:,} "
                f"tokens of this model need {expected[0]:,} and {expected[1]:,}; save the state again.",
                param="state",
            )


@dataclass(frozen=True, slots=True)
class StateHeader:
    """What a file says of its state.

    Attributes:
        identity: The model that it belongs to.
        num_tokens: Number of tokens that it goes on from.
        blocks_bytes, slot_bytes: Bytes of paged and of recurrent state.
        created: Unix time of the save.
        model: Name of the model, for people.
        digest: Digest of tokens, state and conversation.
        tensors: Places of the tensors in the file.
    """

    identity: StateIdentity
    num_tokens: int
    blocks_bytes: int
    slot_bytes: int
    created: int
    model: str
    digest: str
    tensors: Mapping[str, TensorInfo]

    @property
    def has_conversation(self) -> bool:
        """Whether it was saved after messages, so that messages can follow."""
        return "conversation" in self.tensors

    @property
    def created_at(self) -> datetime:
        """The time of the save, UTC."""
        return datetime.fromtimestamp(self.created, UTC)


def metadata_of(identity: StateIdentity, created: int, model: str, digest: str) -> dict[str, str]:
    """Return the metadata of a file."""
    label = "".join(char for char in model if char.isprintable())[:MAX_MODEL_CHARS]
    return {
        "format": FORMAT,
        "version": VERSION,
        **asdict(identity),
        "created": str(created),
        "model": label,
        "digest": digest,
    }


def read_state_header(path: Path, source: str | None = None) -> StateHeader:
    """Read and check the header of a file.

    Args:
        source: The state in messages; None: the file's name.

    Raises:
        InvalidRequest: The file can't be read, or isn't a whole saved state.
    """
    descriptor = open_state(path, source)
    try:
        return header_of(descriptor, source or path.name)
    finally:
        os.close(descriptor)


def open_state(path: Path, source: str | None = None) -> int:
    """Open a regular file and return its descriptor.

    Args:
        source: The state in messages; None: its path.

    Raises:
        InvalidRequest: It can't be opened, or is no regular file.
    """
    shown = source or f"the saved state {str(path)[:200]!r}"
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        problem = error.strerror if isinstance(error, OSError) else str(error)
        raise InvalidRequest(
            f"{shown} can't be opened: {problem}; name a file of 'blazr state save'.", param="state"
        ) from None
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise InvalidRequest(f"{shown} is not a regular file; name a file of 'blazr state save'.", param="state")


def header_of(descriptor: int, name: str) -> StateHeader:
    """Read and check the header of an open file.

    Args:
        name: The file's name, for messages.

    Raises:
        InvalidRequest: The file isn't a whole saved state.
    """
    try:
        tensors, metadata = read_open_header(descriptor, name)
    except (CorruptCheckpoint, UnsupportedFormat) as error:
        raise InvalidRequest(
            f"{error.message} A saved state is one whole safetensors file; save it again.", param="state"
        ) from None
    if metadata.get("format") != FORMAT:
        raise _refused(name, "has no saved state in it (its header has no format blazr-state)")
    if metadata.get("version") != VERSION:
        version = str(metadata.get("version"))[:20]
        raise _refused(name, f"has version {version!r} of the format, this blazr reads {VERSION}")
    for member, pattern in _PATTERNS.items():
        if re.fullmatch(pattern, metadata.get(member, "")) is None:
            raise _refused(name, f"has a header whose {member} is {metadata.get(member, '')[:40]!r}")
    model = metadata.get("model", "")
    if len(model) > MAX_MODEL_CHARS or not model.isprintable():
        raise _refused(name, "has a header whose model is no printable name")
    sizes = {found: _size_of(info, found, name) for found, info in tensors.items()}
    if "token_ids" not in sizes or not sizes.keys() <= {"token_ids", "blocks", "slot", "conversation"}:
        raise _refused(name, "must have the tensors token_ids, blocks, slot and conversation, and no others")
    if sizes.get("conversation", 0) > MAX_CONVERSATION_BYTES:
        raise _refused(name, f"has messages of {sizes['conversation']:,} bytes; {MAX_CONVERSATION_BYTES:,} are allowed")
    num_tokens = sizes["token_ids"] // _TOKEN_BYTES
    if not 2 <= num_tokens <= MAX_TOKENS:
        raise _refused(name, f"has {num_tokens} tokens; 2 to {MAX_TOKENS:,} are allowed")
    found_identity = {field.name: metadata.get(field.name, "") for field in fields(StateIdentity)}
    return StateHeader(
        StateIdentity(**found_identity | {"state_dtype": metadata.get("state_dtype") or "float32"}),
        num_tokens,
        sizes.get("blocks", 0),
        sizes.get("slot", 0),
        int(metadata["created"]),
        model,
        metadata["digest"],
        tensors,
    )


def _size_of(info: TensorInfo, tensor: str, name: str) -> int:
    expected = "I64" if tensor == "token_ids" else "U8"
    if info.dtype != expected or len(info.shape) != 1:
        found = f"{info.dtype} {list(info.shape)}"
        raise _refused(name, f"has the tensor {tensor[:40]} as {found}, not as a row of {expected}")
    return info.end - info.begin


def _refused(name: str, problem: str) -> InvalidRequest:
    return InvalidRequest(f"{name[:200]} {problem}; save the state again.", param="state")
