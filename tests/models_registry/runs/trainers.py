"""What trainers write: oxidizr's step files, and checkpoint directories as HuggingFace's trainer makes them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from inference.demo.paths import PREBUILT_DIRECTORY

PREFIX = "nano_64_1m_f32"


def oxidizr_run(directory: Path) -> Path:
    """A directory as it is at the start of the training."""
    directory.mkdir(parents=True)
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        if (PREBUILT_DIRECTORY / name).exists():
            shutil.copy(PREBUILT_DIRECTORY / name, directory / name)
    return directory


def weights(seed: int | None = None) -> dict[str, torch.Tensor]:
    """The demo model's weights, with noise that depends on the seed."""
    tensors = load_file(PREBUILT_DIRECTORY / "model.safetensors")
    if seed is None:
        return tensors
    noise = torch.Generator().manual_seed(seed)
    return {
        name: value + (0.02 * torch.randn(value.shape, generator=noise)).to(value.dtype)
        for name, value in tensors.items()
    }


def oxidizr_step(directory: Path, number: int | None, *, seed: int | None = None) -> Path:
    """Write the checkpoint after so many steps (None: at the end) in one go; returns its file."""
    file = directory / (f"{PREFIX}_final.safetensors" if number is None else f"{PREFIX}_step_{number}.safetensors")
    if seed is None:
        shutil.copyfile(PREBUILT_DIRECTORY / "model.safetensors", file)
    else:
        save_file(weights(seed), file)
    if number is not None:
        meta = {"step": number, "timestamp": "2026-01-01T00:00:00Z", "checkpoint_file": file.name, "dtype": "f32"}
        (directory / f"checkpoint_step_{number}.meta.json").write_text(json.dumps(meta))
    return file


def hugging_face_step(directory: Path, number: int, *, num_shards: int = 1) -> Path:
    """Write a checkpoint directory with state of the trainer; returns it."""
    place = directory / f"checkpoint-{number}"
    place.mkdir()
    shutil.copy(PREBUILT_DIRECTORY / "config.json", place / "config.json")
    tensors = weights()
    if num_shards == 1:
        save_file(tensors, place / "model.safetensors")
    else:
        names = sorted(tensors)
        weight_map = {}
        for shard in range(num_shards):
            file = f"model-{shard + 1:05d}-of-{num_shards:05d}.safetensors"
            own = names[shard::num_shards]
            save_file({name: tensors[name] for name in own}, place / file)
            weight_map |= dict.fromkeys(own, file)
        index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
        (place / "model.safetensors.index.json").write_text(json.dumps(index))
    (place / "trainer_state.json").write_text(json.dumps({"global_step": number, "log_history": []}))
    (place / "scheduler.pt").write_bytes(b"PK")
    return place
