"""Copies of blocks and slots: bytes and tensors move the same."""

from __future__ import annotations

import pytest
import torch

from inference.engine.config import EngineConfig
from inference.engine.model_runner import allocate_states
from inference.engine.prefix_cache.state_access import StateAccess
from tests.inference.engine.fakes import make_spec


@pytest.mark.parametrize("state_dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("use_tensors", [False, True])
def test_bytes_and_tensors_move_the_same(dtype, state_dtype, use_tensors):
    spec = make_spec("hybrid")
    sizes = {"num_blocks": 5, "num_state_slots": 4, "block_size": 4, "max_num_seqs": 2}
    config = EngineConfig(64, **sizes, dtype=dtype, state_dtype=state_dtype)
    layers = allocate_states(spec, config)
    generator = torch.Generator().manual_seed(0)
    for layer in layers:
        for tensor in layer.values():
            tensor.copy_(torch.randn(tensor.shape, generator=generator))
    before = [{name: tensor.clone() for name, tensor in layer.items()} for layer in layers]
    access = StateAccess(spec, layers, 4, use_tensors=use_tensors)
    other = StateAccess(spec, before, 4, use_tensors=not use_tensors)
    assert (access.read_block(2, 3) == other.read_block(2, 3)).all()
    assert (access.read_slot(1) == other.read_slot(1)).all()
    access.copy_block(2, 3, 3)
    access.copy_slot(1, 2)
    access.write_block(4, other.read_block(1, 4), 2)
    access.write_slot(3, other.read_slot(2))
    for layer, was in zip(layers, before, strict=True):
        for name, tensor in layer.items():
            wanted = was[name].clone()
            if name in ("k", "v"):
                wanted[12:15], wanted[16:18] = was[name][8:11], was[name][4:6]
            else:
                wanted[2], wanted[3] = was[name][1], was[name][2]
            assert torch.equal(tensor, wanted)
    assert access.token_bytes == spec.state_bytes_per_token(dtype)
    assert access.slot_bytes == spec.state_bytes_per_sequence(dtype, state_dtype)
