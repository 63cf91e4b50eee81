"""States in files: what is written is read back, and what can't be written or read is refused in one line."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load, save

from inference.demo.paths import PREBUILT_DIRECTORY
from inference.engine.saved_state import SavedState
from inference.errors import InvalidRequest, StorageFull
from inference.llm.options import LLMOptions
from inference.llm.state_file import PromptState, identity_of, read_state_file, state_content, write_state_file
from inference.llm.state_header import StateSizes, read_state_header
from inference.modelling.specs.layers import Mamba2Spec
from inference.modelling.specs.parts import NormSpec
from models_registry.detection.inspection import inspect_checkpoint

SIZES = StateSizes(token_bytes=45, slot_bytes=40, max_tokens=3)
BLOCKS, SLOT = np.arange(90, dtype=np.uint8), np.arange(40, dtype=np.uint8)


@pytest.fixture(scope="module")
def identity(checkpoint):
    return identity_of(checkpoint.spec, checkpoint.files, "float32", LLMOptions())


@pytest.fixture
def state(identity):
    return PromptState((5, 6, 7), SavedState((5, 6), BLOCKS, SLOT), identity, 1_700_000_000)


def test_what_is_written_is_read_back(tmp_path, state, identity):
    path = tmp_path / "a.state"
    size = write_state_file(path, state, model="[red]a\nmodel")
    found, header = read_state_file(path, identity, SIZES), read_state_header(path)
    assert (found.token_ids, found.created, found.digest) == (state.token_ids, state.created, state.digest)
    assert found.state.token_ids == (5, 6)
    assert bytes(found.state.blocks) == bytes(BLOCKS) and bytes(found.state.slot) == bytes(SLOT)
    assert (header.num_tokens, header.blocks_bytes, header.slot_bytes) == (3, 90, 40)
    assert (header.model, header.digest, header.identity) == ("[red]amodel", state.digest, identity)
    assert path.stat().st_size == size and path.stat().st_mode & 0o777 == 0o600
    with safe_open(path, "np") as file:
        assert file.get_tensor("token_ids").tolist() == [5, 6, 7]


def test_the_content_is_the_library_s_without_a_copy_of_the_state(state):
    pieces = state_content(replace(state, conversation={"messages": [{"role": "user", "content": "ä"}]}), "a model")
    content = b"".join(pieces)
    tensors = load(content)
    assert tensors.keys() == {"token_ids", "blocks", "slot", "conversation"}
    assert save(tensors)[-sum(map(len, pieces[1:])) :] == b"".join(pieces[1:]), "in the same order"
    (length,) = np.frombuffer(content[:8], "<u8")
    assert length % 8 == 0, "tensors are aligned"
    assert any(np.shares_memory(np.frombuffer(piece, np.uint8), SLOT) for piece in pieces)


def test_parts_that_a_model_lacks_are_left_out(tmp_path, identity):
    nothing = np.empty(0, np.uint8)
    write_state_file(tmp_path / "a", PromptState((5, 6), SavedState((5,), nothing, SLOT), identity, 0))
    assert read_state_header(tmp_path / "a").tensors.keys() == {"token_ids", "slot"}
    assert len(read_state_file(tmp_path / "a", identity, replace(SIZES, token_bytes=0)).state.blocks) == 0


def test_a_later_state_takes_the_place_of_an_earlier_one(tmp_path, state, identity):
    path = tmp_path / "a.state"
    write_state_file(path, state)
    write_state_file(path, replace(state, created=3))
    assert read_state_file(path, identity, SIZES).created == 3
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.state"]


@pytest.mark.parametrize("kind", ["link", "dangling", "pipe", "directory", "text", "nowhere"])
def test_targets_that_are_refused(tmp_path, state, kind):
    path, other = tmp_path / "target", tmp_path / "other"
    if kind in ("link", "dangling"):
        if kind == "link":
            write_state_file(other, state)
        path.symlink_to(other)
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "text":
        path.write_text("precious")
    else:
        path = tmp_path / "none" / "target"
    before = sorted(entry.name for entry in tmp_path.iterdir())
    with pytest.raises(InvalidRequest, match=r"is not a regular file|isn't a saved state|is in no directory"):
        write_state_file(path, state)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == before
    assert kind != "text" or path.read_text() == "precious"


def test_directories_that_cannot_be_written(state):
    with pytest.raises(InvalidRequest, match=r"'/proc/a\.state' can't be written: .*; choose another place"):
        write_state_file(Path("/proc/a.state"), state)


@pytest.mark.parametrize("code", [None, errno.ENOSPC])
def test_a_write_that_fails_leaves_nothing(tmp_path, state, identity, monkeypatch, code):
    path = tmp_path / "a.state"
    write_state_file(path, state)

    def fail(prompt, model):
        yield b"half"
        raise OSError(*([code] if code else []), "No space left on device")

    monkeypatch.setattr("inference.llm.state_file.state_content", fail)
    with pytest.raises(StorageFull, match=r"can't be written to .*No space left.*free some room"):
        write_state_file(path, replace(state, created=3))
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.state"]
    assert read_state_file(path, identity, SIZES).created == state.created


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        (
            "weights",
            "1" * 64,
            "other weights: 111111111111…, this model's are .*; use the model that it was saved with",
        ),
        ("spec", "1" * 64, "other detected facts"),
        (
            "dtype",
            "bfloat16",
            "dtype bfloat16, this model is loaded with float32; load the model with --dtype bfloat16",
        ),
        (
            "state_dtype",
            "bfloat16",
            "state_dtype bfloat16, this model is loaded with float32; load the model with --state-dtype bfloat16",
        ),
        ("quant", "int8", "quant int8, this model is loaded with auto; load the model with --quant int8"),
        ("device", "cuda", "device cuda, this model is loaded with cpu; use the same device"),
        ("block_size", "32", "block_size 32, this model is loaded with 16"),
        ("revision", "4", "revision of quantisation 4"),
        ("layout", "1" * 64, r"another layout of the state \(another version of blazr\)"),
    ],
)
def test_states_of_other_models_are_refused(tmp_path, state, identity, name, value, words):
    write_state_file(tmp_path / "a.state", replace(state, identity=replace(identity, **{name: value})))
    with pytest.raises(InvalidRequest, match=rf"a\.state was saved with {words}") as refused:
        read_state_file(tmp_path / "a.state", identity, SIZES)
    assert "save the state again" in refused.value.message and "\n" not in refused.value.message


def test_an_identity_follows_weights_and_options(checkpoint, identity, tmp_path):
    changed = tmp_path / "model.safetensors"
    content = bytearray(checkpoint.files[0].read_bytes())
    content[-1] ^= 1
    changed.write_bytes(content)
    others = [
        identity_of(checkpoint.spec, [changed], "float32", LLMOptions()),
        identity_of(replace(checkpoint.spec, logits_multiplier=2.0), checkpoint.files, "float32", LLMOptions()),
        identity_of(checkpoint.spec, checkpoint.files, "bfloat16", LLMOptions()),
        identity_of(checkpoint.spec, checkpoint.files, "float32", LLMOptions(quant="int8")),
        identity_of(checkpoint.spec, checkpoint.files, "float32", LLMOptions(device="cuda:0")),
        identity_of(checkpoint.spec, checkpoint.files, "float32", LLMOptions(block_size=32)),
    ]
    assert len({identity, *others}) == 7
    memo = LLMOptions(cache_dir=tmp_path)
    assert [identity_of(checkpoint.spec, checkpoint.files, "float32", memo) for _ in range(2)] == [identity] * 2


def test_files_without_a_dtype_of_states_are_older_and_hold_float32(tmp_path, state, identity):
    older = replace(state, identity=replace(identity, state_dtype=""))
    write_state_file(tmp_path / "a.state", older)
    assert read_state_header(tmp_path / "a.state").identity == identity
    assert read_state_file(tmp_path / "a.state", identity, SIZES).state.digest == state.state.digest


def test_the_file_of_a_mamba2_1_3b_has_half_the_bytes_in_bfloat16(identity):
    """48 layers of 64 heads of 64 by 128, and of 4,352 convolved channels; the tokens' ids are beside them."""
    mixer, sizes = Mamba2Spec(4096, 64, 64, 128, 1, 4, 4096, NormSpec()), {}
    for dtype in ("float32", "bfloat16"):
        slot = np.zeros(48 * sum(part.size_bytes("bfloat16", dtype) for part in mixer.state()), np.uint8)
        for count in (100, 20_000):
            kept = SavedState(tuple(range(count - 1)), np.empty(0, np.uint8), slot)
            content = state_content(PromptState(tuple(range(count)), kept, replace(identity, state_dtype=dtype), 0))
            sizes[dtype, count] = sum(len(piece) for piece in content) - 8 * count
    assert sizes["float32", 100] == pytest.approx(103.2e6, rel=1e-3)
    assert sizes["bfloat16", 100] == pytest.approx(51.6e6, rel=1e-3)
    assert all(abs(sizes[dtype, 100] - sizes[dtype, 20_000]) < 100 for dtype in ("float32", "bfloat16"))


def test_a_dtype_of_states_binds_models_that_have_some(checkpoint):
    half, found = LLMOptions(state_dtype="bfloat16"), inspect_checkpoint(PREBUILT_DIRECTORY)
    assert identity_of(checkpoint.spec, checkpoint.files, "float32", half).state_dtype == "float32"
    plain, other = (identity_of(found.spec, found.weight_paths, "float32", options) for options in (LLMOptions(), half))
    assert (plain.state_dtype, other.state_dtype) == ("float32", "bfloat16") and plain.layout != other.layout


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({"max_tokens": 2}, r"goes on from 3 tokens, the model is loaded for 2; raise max_model_len"),
        (
            {"token_bytes": 44},
            r"has 90 bytes of paged and 40 of recurrent state, 3 tokens of this model need 88 and 40",
        ),
        ({"slot_bytes": 41}, r"3 tokens of this model need 90 and 41; save the state again"),
    ],
)
def test_files_of_other_sizes_are_not_read(tmp_path, state, identity, monkeypatch, sizes, words):
    write_state_file(tmp_path / "a.state", state)
    monkeypatch.delattr("inference.llm.state_file._read")
    with pytest.raises(InvalidRequest, match=words):
        read_state_file(tmp_path / "a.state", identity, replace(SIZES, **sizes))


def test_large_weights_are_read_once(checkpoint, identity, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("inference.llm.state_file.MIN_MEMO_BYTES", 1)
    assert identity_of(checkpoint.spec, checkpoint.files, "float32", LLMOptions()) == identity
    assert len(list((tmp_path / "blazr" / "digests").iterdir())) == 1
    monkeypatch.delattr("inference.engine.prefix_cache.model_key._digest_of")
    assert identity_of(checkpoint.spec, checkpoint.files, "float32", LLMOptions()) == identity


def test_every_cut_and_every_changed_byte_is_found(tmp_path, state, identity):
    path = tmp_path / "a.state"
    write_state_file(path, state)
    content = path.read_bytes()
    for size in range(0, len(content), 7):
        path.write_bytes(content[:size])
        with pytest.raises(InvalidRequest, match=r"save (it|the state) again"):
            read_state_file(path, identity, SIZES)
    begin = 8 + int.from_bytes(content[:8], "little")
    for position in range(begin, len(content)):
        path.write_bytes(content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :])
        with pytest.raises(InvalidRequest, match=r"a\.state is damaged \(its checksum differs\)"):
            read_state_file(path, identity, SIZES)


def test_messages_are_kept(tmp_path, state, identity):
    path, conversation = tmp_path / "a.state", {"messages": [{"role": "user", "content": "ö"}], "template_kwargs": {}}
    write_state_file(path, replace(state, conversation=conversation))
    assert read_state_file(path, identity, SIZES).conversation == conversation
    assert read_state_header(path).has_conversation and state.digest != read_state_header(path).digest


@pytest.mark.parametrize(
    "content",
    ["[]", '{"messages": 1}', '{"messages": [1]}', '{"messages": [], "x": 1}', '{"messages": [], "template_kwargs": 1}',
     '{"messages": [{"content": "no role"}]}',
     '{"messages": [{"role": "user", "content": "x", "cache_control": {"type": "ephemeral"}}]}',
     '{"messages": [{"role": "user", "content": [{"text": "x", "cache_control": {"type": "ephemeral"}}]}]}',
     '{"messages": [{"role": "user", "content": [{"type": "image", "data": "", "width": 1, "height": 1}]}]}',
     "{", "[" * 1000, '{"messages": [' + "[]," * 600_000 + "[]]}"],
    ids=lambda content: content[:44],
)  # fmt: skip
def test_messages_that_nobody_can_read(tmp_path, state, identity, monkeypatch, content):
    monkeypatch.setattr("inference.llm.state_file._conversation_bytes", lambda _: content.encode())
    write_state_file(tmp_path / "a.state", replace(state, conversation={}))
    with pytest.raises(InvalidRequest, match=r"^a\.state holds messages that can't be read; save the state again\.$"):
        read_state_file(tmp_path / "a.state", identity, SIZES)


def abandoned(directory: Path, name: str, *, age_s: float = 100.0, content: str = "state") -> Path:
    path = directory / name
    path.mkdir()
    (path / content).write_bytes(b"half a state")
    os.utime(path, (time.time() - age_s,) * 2)
    return path


def test_what_killed_writers_left_is_removed(tmp_path, state):
    """At the next write into the directory; what is new, locked, linked or somebody else's stays."""
    gone = abandoned(tmp_path, ".state-killed")
    kept = [
        abandoned(tmp_path, ".state-new", age_s=1.0),
        abandoned(tmp_path, ".state-other", content="notes.txt"),
        abandoned(tmp_path, ".states"),
        abandoned(tmp_path, ".state-writing"),
    ]
    (tmp_path / ".state-link").symlink_to(abandoned(tmp_path, "elsewhere"))
    lock = os.open(kept[-1], os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    write_state_file(tmp_path / "a.state", state)
    assert not gone.exists()
    assert all(list(path.iterdir()) for path in kept) and list((tmp_path / "elsewhere").iterdir())
    os.close(lock)
    write_state_file(tmp_path / "a.state", state)
    assert not kept[-1].exists()


def test_a_killed_writer_s_directory_is_not_locked(tmp_path, state):
    """Its lock ends with the process, however that ends."""
    code = (
        "import os, signal, sys; from pathlib import Path; from inference.llm import state_file\n"
        "state_file.state_content = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "state_file.write_state_file(Path(sys.argv[1]), None)\n"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(tmp_path / "b.state")], timeout=120)
    assert killed.returncode == -signal.SIGKILL
    (left,) = tmp_path.glob(".state-*")
    os.utime(left, (time.time() - 100,) * 2)
    write_state_file(tmp_path / "a.state", state)
    assert [path.name for path in tmp_path.iterdir()] == ["a.state"]
