"""ggjt files: read like the GGUF file of the same weights, and refused before they cost anything."""

from __future__ import annotations

import resource
import struct
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, quants
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from transformers import LlamaConfig

from inference.errors import CheckpointError, CorruptCheckpoint
from inference.modelling.gguf.architectures import read_checkpoint
from inference.modelling.gguf.block_types import BLOCK_TYPES
from inference.modelling.gguf.ggjt import LIMITS, MAX_TOKEN_BYTES, STORED_TYPES, is_ggjt, read_ggjt, read_ggjt_tokens
from inference.modelling.weights.files import TensorFiles
from inference.modelling.weights.loader import load_network
from models_registry.detection.inspection import inspect_checkpoint
from tests.inference.modelling.gguf.converter import convert
from tests.inference.modelling.gguf.ggjt_writer import Ggjt, convert_to_ggjt, llama_tokens, small
from tests.inference.modelling.gguf.writer import Tensor
from tests.inference.modelling.harness import SequenceRunner
from tests.inference.modelling.huggingface import make_checkpoint

ROWS = 300
CONFIG = LlamaConfig(
    vocab_size=ROWS, hidden_size=64, intermediate_size=192, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=False,
)  # fmt: skip


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small Llama with grouped queries."""
    return make_checkpoint(CONFIG, tmp_path_factory.mktemp("safetensors"))[0]


def contents(path: Path, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    names = sorted(read_checkpoint([path]).tensors)
    with TensorFiles([path], [(name,) for name in names], dequantised=dtype) as files:
        found = {}
        for name in names:
            files.move()
            found[name] = files.read(name).clone()
    return found


def test_a_file_is_the_checkpoint_that_it_was_made_of(llama: Path, tmp_path: Path) -> None:
    path = convert_to_ggjt(llama, tmp_path / "model.bin", tokens=llama_tokens(ROWS))
    assert is_ggjt(path)
    found, expected = contents(path), load_file(llama / "model.safetensors")
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(found[name], value.float()), name
    checkpoint = read_checkpoint([path])
    config = checkpoint.config
    assert (config["num_attention_heads"], config["num_key_value_heads"], config["intermediate_size"]) == (4, 2, 192)
    assert (config["bos_token_id"], config["eos_token_id"], config["vocab_size"]) == (1, 2, ROWS)
    assert (config["max_position_embeddings"], config["rms_norm_eps"], config["rope_theta"]) == (2048, 5e-6, 1e4)
    assert read_ggjt_tokens(path) == llama_tokens(ROWS)


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("kind", ["F16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_codes_have_the_values_of_the_same_codes_in_gguf(llama: Path, tmp_path: Path, kind: str, version: int) -> None:
    path = convert_to_ggjt(llama, tmp_path / "a.bin", kind, tokens=llama_tokens(ROWS), version=version)
    assert read_ggjt(path).version == version
    found = contents(path)
    expected = contents(convert(llama, tmp_path / "a.gguf", kind))
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(found[name], value), name


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_older_codes_are_kept_in_the_form_of_gguf(llama: Path, tmp_path: Path, kind: str, version: int) -> None:
    old = convert_to_ggjt(llama, tmp_path / "old.ggml", kind, tokens=llama_tokens(ROWS), version=version)
    new = convert_to_ggjt(llama, tmp_path / "new.ggml", kind, tokens=llama_tokens(ROWS))
    specs = [inspect_checkpoint(path).spec for path in (old, new)]
    assert specs[0] == specs[1] and {item.type for item in specs[0].encoded} == {kind}
    networks = [load_network(spec, [path], dtype=torch.float32, quant="auto", pack=True)
                for spec, path in zip(specs, (old, new), strict=True)]  # fmt: skip
    outputs = [SequenceRunner(network).step([("a", list(range(20)))])["a"] for network in networks]
    assert torch.equal(*outputs)
    assert not [text for text in inspect_checkpoint(old).warnings if "expanded" in text]


@pytest.mark.parametrize("kind", ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"])
def test_blocks_of_256_values_are_read(tmp_path: Path, kind: str) -> None:
    number = GGMLQuantizationType[kind]
    size = quants.GGML_QUANT_SIZES[number][1]
    random = np.random.default_rng(3)
    scale = np.array([0.01], np.float16).tobytes()
    blocks = bytearray(random.integers(0, 256, 4 * size, np.uint8).tobytes())
    if kind in ("Q4_K", "Q5_K"):  # the scales in float16 are finite
        for block in range(4):
            blocks[block * size : block * size + 4] = scale * 2
    else:
        for block in range(4):
            end = (block + 1) * size
            blocks[end - 4 : end] = scale * 2 if kind == "Q2_K" else blocks[end - 4 : end - 2] + scale
    file = Ggjt(256, 2, 1, tokens=[(b"a", 0.0)] * 4, tensors=[
        Tensor("tok_embeddings.weight", (4, 256), bytes(blocks), int(number))
    ])  # fmt: skip
    path = tmp_path / "a.bin"
    path.write_bytes(file.content())
    place = read_ggjt(path).tensors["token_embd.weight"]
    assert (place.block_type.name, place.shape, place.begin % 32) == (kind, (4, 256), 0)
    raw = np.frombuffer(path.read_bytes()[place.begin : place.end], np.uint8).reshape(4, -1)
    found = contents(path)["model.embed_tokens.weight"]
    torch.testing.assert_close(found, torch.from_numpy(quants.dequantize(raw, number)), rtol=1e-6, atol=1e-7)


# --- wrong files -------------------------------------------------------------------------------


def named(name: str | bytes, shape: tuple[int, ...] = (4,), kind: int = 0, data: bytes = bytes(16)) -> bytes:
    return small(tensors=[Tensor(name, shape, data, kind)]).content()


SMALL = small().content()
HOSTILE = {
    "empty": (b"", "is no ggjt file: it begins with b''"),
    "pickle": (b"PK\x03\x04" + bytes(64), "is no ggjt file"),
    "head alone": (SMALL[:20], "is truncated: it has 20 bytes"),
    "no vocabulary": (SMALL[:36], "is truncated: token 0 of 4 begins at byte 36"),
    "no tensors": (small(tensors=()).content(), "is truncated: it has no tensors"),
    "within a token": (SMALL[:43], "is truncated: token 0 of 4"),
    "within an entry": (SMALL[:100], "is truncated"),
    "within the data": (SMALL[:-1], r"is truncated: the tensor norm\.weight ends at byte"),
    "bytes behind": (small(behind=b"12345").content(), "is truncated: 5 bytes lie behind the last tensor"),
    "version 4": (small(version=4).content(), "ggjt file of version 4; the versions 1, 2, 3 are read. Convert"),
    "blocks of 16": (
        small(version=1, tensors=[Tensor("norm.weight", (4,), bytes(16), 4)]).content(),
        r"norm\.weight of type 4; of ggjt files of version 1 are read F32, F16, Q4_0, .* Convert the model",
    ),
    "K types of version 2": (
        small(version=2, tensors=[Tensor("norm.weight", (4,), bytes(16), 12)]).content(), "of version 2 are read F32"
    ),
    "ggml": (small(magic=b"lmgg").content(), "is an unversioned ggml file"),
    "ggmf": (small(magic=b"fmgg").content(), "is a ggmf file"),
    "adapter": (small(magic=b"algg").content(), "is an adapter"),
    "tokens without end": (small(num_tokens=1 << 31).content(), "n_vocab 2147483648; 1 to 131072"),
    "no tokens": (small(num_tokens=0).content(), "n_vocab 0"),
    "width 0": (small(width=0, rotated=0).content(), "n_embd 0"),
    "layers": (small(layers=1 << 30).content(), "n_layer 1073741824"),
    "no head": (small(width=4, heads=3).content(), "n_rot must be n_embd / n_head"),
    "partly rotated": (small(rotated=1).content(), "n_rot must be n_embd / n_head"),
    "long token": (
        small(tokens=[(b"a" * (MAX_TOKEN_BYTES + 1), 0.0)] * 4).content(), "has token 0 with 1025 bytes; the limit"
    ),
    "dimensions": (named("norm.weight", (4, 1, 1)), "tensor with 3 dimensions"),
    "no name": (named(""), "a name of 0 bytes"),
    "long name": (named("n" * 129), "a name of 129 bytes"),
    "name of another model": (named("transformer.wte.weight"), "llama with 1 layers doesn't have"),
    "layer behind the last": (named("layers.1.ffn_norm.weight"), "llama with 1 layers doesn't have"),
    "name in bytes": (named(b"\xff\xfe\x00"), "doesn't have"),
    "type": (named("norm.weight", kind=20), r"norm\.weight of type 20; of ggjt files of version 3 are read F32"),
    "blocks": (named("layers.0.feed_forward.w1.weight", (1, 4), kind=2), "Q4_0 has blocks of 32"),
    "no columns": (named("layers.0.feed_forward.w1.weight", (1, 0)), "has the tensor"),
    "huge": (named("layers.0.feed_forward.w1.weight", ((1 << 32) - 1, (1 << 32) - 1)), "is truncated: the tensor"),
    "twice": (
        small(tensors=[Tensor("norm.weight", (4,), bytes(16))] * 2).content(), "two tensors that are output_norm.weight"
    ),
    "rows of the vocabulary": (
        named("tok_embeddings.weight", (5, 4), data=bytes(80)), r"\[4, 5\], but n_embd 4 and n_vocab 4 make it \[4, 4\]"
    ),
    "heads of keys": (
        named("layers.0.attention.wk.weight", (3, 4), data=bytes(48)), "3 rows, which are no heads of 2"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused_in_one_line(tmp_path: Path, name: str) -> None:
    content, message = HOSTILE[name]
    path = tmp_path / "model.bin"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=message) as caught:
        read_ggjt(path)
    assert "model.bin" in caught.value.message
    assert len(caught.value.message) < 400 and "\n" not in caught.value.message
    assert type(caught.value) is not CorruptCheckpoint or caught.value.message.endswith("again.")


@given(st.integers(0, len(SMALL) - 1))
def test_every_truncated_file_is_refused(tmp_path_factory: pytest.TempPathFactory, size: int) -> None:
    path = tmp_path_factory.getbasetemp() / "cut.bin"
    path.write_bytes(SMALL[:size])
    try:
        found = read_ggjt(path)
    except CheckpointError:
        return
    assert len(found.tensors) == 1  # cut off behind the first tensor: the family misses the others


@given(st.binary(min_size=1, max_size=8), st.integers(0, len(SMALL)))
def test_changed_files_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, change: bytes, position: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "changed.bin"
    path.write_bytes(SMALL[:position] + change + SMALL[position + len(change) :])
    try:
        found = read_ggjt(path)
    except CheckpointError:
        return
    assert all(place.end <= path.stat().st_size for place in found.tensors.values())


def test_the_largest_legal_headers_cost_little(tmp_path: Path) -> None:
    """Either the most tokens or the most tensors, and an error at the very end."""
    count = LIMITS["n_vocab"]
    kinds = ("attention_norm", "ffn_norm", "feed_forward.w1", "feed_forward.w2", "feed_forward.w3")
    names = [f"layers.{layer}.{kind}.weight" for layer in range(LIMITS["n_layer"]) for kind in kinds]
    many = [Tensor(name, (4,), bytes(16)) for name in names]
    files = (
        small(tokens=[(b"abcdefgh", 0.0)] * count, tensors=(), behind=b"x").content(),
        small(tokens=[(b"", 0.0)] * (count - 1), num_tokens=count, tensors=()).content(),
        small(layers=LIMITS["n_layer"], tensors=many, behind=b"x").content(),
    )
    path = tmp_path / "model.bin"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for content in files:
        path.write_bytes(content)
        started = time.process_time()
        with pytest.raises(CorruptCheckpoint, match="truncated"):
            read_ggjt(path)
        assert time.process_time() - started < 0.3  # 0.05 s is typical; other tests run beside
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10


def test_what_is_no_file_is_none(tmp_path: Path) -> None:
    assert not is_ggjt(tmp_path)
    assert not is_ggjt(tmp_path / "gone")
    with pytest.raises(CorruptCheckpoint, match="can't be opened"):
        read_ggjt(tmp_path / "gone")
    with pytest.raises(CorruptCheckpoint, match="not a regular file"):
        read_ggjt(tmp_path)


def test_types_are_those_of_gguf() -> None:
    last = [BLOCK_TYPES[number].name for number in STORED_TYPES[3].values()]
    assert last[:3] == ["F32", "F16", "Q4_0"]
    for version in (1, 2):
        names = [BLOCK_TYPES[number].form_name for number in STORED_TYPES[version].values()]
        assert names == last[: len(names)]
    assert struct.pack("<I", 0x67676A74) == b"tjgg"
