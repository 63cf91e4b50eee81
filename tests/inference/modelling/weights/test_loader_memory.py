"""Loading keeps near the size of what stays: measured on a child process, as the system counts it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from inference.modelling.backends.native.packing import PIECE_BYTES
from inference.modelling.weights.files import NUM_READERS

LAYERS, HIDDEN, WIDTH, VOCAB = 10, 512, 2048, 4096
CHILD = """
import sys
from pathlib import Path

import torch

from inference.modelling.layers.linear import network_bytes
from inference.modelling.weights.loader import load_network
from inference.modelling.backends.native import library
from models_registry.detection.inspection import inspect_checkpoint

def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))

torch.set_num_threads(1)
library.is_available()
directory = Path(sys.argv[1])
spec = inspect_checkpoint(directory).spec
files = [directory / "model.safetensors"]
torch.zeros(8 << 20).sum()  # what the allocator and the kernels take anyway
before = peak()
network = load_network(spec, files, dtype=torch.bfloat16, quant=sys.argv[2])
print(network_bytes(network), peak() - before)
"""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("llama")
    config = {
        "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": WIDTH, "num_hidden_layers": LAYERS,
        "num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": VOCAB, "max_position_embeddings": 128,
        "tie_word_embeddings": True, "rms_norm_eps": 1e-5,
    }  # fmt: skip
    (directory / "config.json").write_text(json.dumps(config))
    shapes = {"model.embed_tokens.weight": (VOCAB, HIDDEN), "model.norm.weight": (HIDDEN,)}
    for layer in range(LAYERS):
        base = f"model.layers.{layer}."
        shapes |= {f"{base}self_attn.{name}_proj.weight": (HIDDEN, HIDDEN) for name in "qkvo"}
        shapes |= {f"{base}mlp.{name}_proj.weight": (WIDTH, HIDDEN) for name in ("gate", "up")}
        shapes |= {f"{base}mlp.down_proj.weight": (HIDDEN, WIDTH)}
        shapes |= {f"{base}{name}.weight": (HIDDEN,) for name in ("input_layernorm", "post_attention_layernorm")}
    tensors = {name: torch.full(shape, 0.01, dtype=torch.bfloat16) for name, shape in shapes.items()}
    save_file(tensors, directory / "model.safetensors")
    return directory


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("quant", ["none", "int8", "int4"])
def test_peak_is_the_result_and_one_parameter(checkpoint: Path, quant: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(checkpoint), quant], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    result, peak = map(int, done.stdout.split())
    largest = max(2 * WIDTH * HIDDEN, VOCAB * HIDDEN) * 2
    stored = (checkpoint / "model.safetensors").stat().st_size
    # Assembled and mapped at the same time, and as much again for what malloc keeps.
    assert peak < result + 4 * largest + (4 << 20)
    assert quant == "none" or peak < stored, "less than the file at any time"


@pytest.fixture(scope="module")
def quantised(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model in GPTQ's codes of four bits."""
    directory = tmp_path_factory.mktemp("gptq")
    config = json.loads((checkpoint / "config.json").read_text())
    stated = {"quant_method": "gptq", "bits": 4, "group_size": 128}
    (directory / "config.json").write_text(json.dumps(config | {"quantization_config": stated}))
    tensors = {}
    for name, tensor in load_file(checkpoint / "model.safetensors").items():
        if not name.endswith("_proj.weight"):
            tensors[name] = tensor
            continue
        (rows, columns), stem = tensor.shape, name.removesuffix("weight")
        tensors[stem + "qweight"] = torch.full((columns // 8, rows), 0x12345678, dtype=torch.int32)
        tensors[stem + "qzeros"] = torch.full((columns // 128, rows // 8), 0x77777777, dtype=torch.int32)
        tensors[stem + "scales"] = torch.full((columns // 128, rows), 0.01, dtype=torch.float16)
    save_file(tensors, directory / "model.safetensors")
    return directory


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("quant", ["none", "int8", "int4"])
def test_codes_are_decoded_piece_by_piece(quantised: Path, quant: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(quantised), quant], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    result, peak = map(int, done.stdout.split())
    largest = 2 * WIDTH * HIDDEN
    # As above. If all readers decode at the same moment, each has the codes, float32 values and three temporaries.
    assert peak < result + 4 * largest * 2 + NUM_READERS * 5 * PIECE_BYTES
