"""Write ggjt files for tests, right and wrong ones; from the format's description, not from the reader."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, quants
from safetensors.torch import load_file

from tests.inference.modelling.gguf.writer import Tensor

NAMES = {
    "model.embed_tokens": "tok_embeddings", "model.norm": "norm", "lm_head": "output",
    "self_attn.q_proj": "attention.wq", "self_attn.k_proj": "attention.wk", "self_attn.v_proj": "attention.wv",
    "self_attn.o_proj": "attention.wo", "input_layernorm": "attention_norm", "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "feed_forward.w1", "mlp.down_proj": "feed_forward.w2", "mlp.up_proj": "feed_forward.w3",
    "model.layers": "layers",
}  # fmt: skip
"""Parts of names: of transformers, and of ggjt."""


def llama_tokens(count: int) -> list[tuple[bytes, float]]:
    """A vocabulary in the layout of Llama's: unknown, two ends, 256 bytes, then words."""
    tokens = [(" ⁇ ".encode(), 0.0), (b"", 0.0), (b"", 0.0), *((bytes([value]), 0.0) for value in range(256))]
    words = [" a", "a", "b", "ab", " ab", " ", "ä"]
    tokens += [(word.encode(), -float(number)) for number, word in enumerate(words)]
    tokens += [(f"w{number}".encode(), -float(number)) for number in range(count)]
    return tokens[:count]


@dataclass
class Ggjt:
    """A file; a wrong one is made by setting what ``content`` would have counted."""

    width: int = 4
    heads: int = 2
    layers: int = 1
    multiple: int = 32
    file_type: int = 0
    tokens: Sequence[tuple[bytes, float]] = ()
    tensors: Sequence[Tensor] = ()
    version: int = 3
    magic: bytes = b"tjgg"
    num_tokens: int | None = None
    rotated: int | None = None
    behind: bytes = b""

    def content(self) -> bytes:
        """The bytes of the file."""
        count = len(self.tokens) if self.num_tokens is None else self.num_tokens
        rotated = self.width // self.heads if self.rotated is None else self.rotated
        numbers = (count, self.width, self.multiple, self.heads, self.layers, rotated, self.file_type)
        found = bytearray(self.magic + struct.pack("<I7I", self.version, *numbers))
        for text, score in self.tokens:
            found += struct.pack("<I", len(text)) + text + struct.pack("<f", score)
        for tensor in self.tensors:
            name = tensor.name.encode() if isinstance(tensor.name, str) else tensor.name
            found += struct.pack("<III", len(tensor.shape), len(name), tensor.type)
            found += struct.pack(f"<{len(tensor.shape)}I", *reversed(tensor.shape)) + name
            found += bytes(-len(found) % 32) + tensor.data
        return bytes(found + self.behind)


def older_blocks(raw: np.ndarray, kind: str, version: int) -> np.ndarray:
    """Blocks of today's layout, (n, bytes), as an older version had them: a description of the formats.

    Before version 3 the factors of Q4_0, Q4_1 and Q8_0 were float32. In version 1 a byte held neighbours, and not the
    values k and k + 16, in Q4 and Q5.
    """
    if kind == "F32" or kind == "F16" or version == 3:
        return raw
    factors = 4 if kind.endswith("_1") else 2  # bytes, of float16
    high = 4 if kind.startswith("Q5") else 0
    head, bits, codes = np.split(raw, [factors, factors + high], axis=1)
    if not kind.startswith("Q5"):
        head = np.ascontiguousarray(head).view(np.float16).astype(np.float32).view(np.uint8)
    if version == 1 and not kind.startswith("Q8"):
        values = np.concatenate([codes & 15, codes >> 4], axis=1)
        codes = values[:, 0::2] | values[:, 1::2] << 4
    return np.concatenate([head, bits, codes], axis=1)


def convert_to_ggjt(
    directory: Path, path: Path, kind: str = "F32", *, tokens: Sequence[tuple[bytes, float]], version: int = 3
) -> Path:
    """Write a HuggingFace llama as ``convert.py`` and ``quantize`` did: q and k in Meta's order of rows."""
    config = json.loads((directory / "config.json").read_text())
    heads, kept = config["num_attention_heads"], config["num_key_value_heads"]
    tensors = []
    for file in sorted(directory.glob("*.safetensors")):
        for name, value in load_file(file).items():
            values = value.float().numpy()
            if "q_proj" in name or "k_proj" in name:
                count = heads if "q_proj" in name else kept
                values = values.reshape(count, 2, -1, values.shape[-1]).swapaxes(1, 2).reshape(values.shape)
            stored = name
            for ours, theirs in NAMES.items():
                stored = stored.replace(ours, theirs)
            number = GGMLQuantizationType[kind if values.ndim > 1 else "F32"]
            raw = quants.quantize(values, number).view(np.uint8)
            raw = older_blocks(raw.reshape(-1, quants.GGML_QUANT_SIZES[number][1]), number.name, version)
            tensors.append(Tensor(stored, values.shape, raw.tobytes(), int(number)))
    file = Ggjt(config["hidden_size"], heads, config["num_hidden_layers"], 32, 0, tokens, tensors, version)
    path.write_bytes(file.content())
    return path


def small(**changes: object) -> Ggjt:
    """A file of two tensors."""
    values = {
        "tokens": [(b"a", 0.0), (b"", 0.0), (b"", 0.0), (b" b", -1.0)],
        "tensors": [
            Tensor("tok_embeddings.weight", (4, 4), np.arange(16, dtype=np.float32).tobytes()),
            Tensor("norm.weight", (4,), bytes(16)),
        ],
    }
    return Ggjt(**{**values, **changes})  # type: ignore[arg-type]
