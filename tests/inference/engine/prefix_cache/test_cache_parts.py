"""Namespaces, positions of snapshots, model keys, plans."""

from __future__ import annotations

import os
from dataclasses import replace

from hypothesis import example, given
from hypothesis import strategies as st

from inference.engine.config import EngineConfig, plan_state_budget
from inference.engine.model_runner import allocate_states
from inference.engine.prefix_cache.model_key import file_digest, model_key
from inference.engine.prefix_cache.namespace import Namespaces
from inference.engine.prefix_cache.policy import MIN_GAP, SNAPSHOT_INTERVAL, aligned, snapshot_positions
from inference.modelling.spec import LayerSpec
from inference.modelling.specs.layers import AttentionSpec
from inference.modelling.specs.parts import RopeScaling, RopeSpec
from tests.inference.engine.fakes import make_spec


def spec_with(kind):
    values = {"kind": kind, "factor": 4.0, "original_max_position_embeddings": 100}
    if kind == "longrope":
        values |= {"short_factor": (1.0,), "long_factor": (2.0,)}
    rope = RopeSpec(10000.0, 2, scaling=RopeScaling(**values), max_position_embeddings=100)
    mixer = AttentionSpec(num_heads=1, num_kv_heads=1, head_dim=2, scale=1.0, rope=rope)
    return replace(make_spec("paged"), layers=(LayerSpec(mixer),))


def test_rotations_that_depend_on_the_length_aren_t_shared_across_it():
    plain, longrope, dynamic = (
        Namespaces(spec) for spec in (make_spec("paged"), spec_with("longrope"), spec_with("dynamic"))
    )
    assert plain.digest("", 50) == plain.digest("", 5000)
    assert longrope.digest("", 50) == longrope.digest("", 100) != longrope.digest("", 101) == longrope.digest("", 500)
    assert dynamic.digest("", 50) == dynamic.digest("", 100) != dynamic.digest("", 101) != dynamic.digest("", 102)
    assert plain.digest("a", 5) != plain.digest("b", 5)


@given(start=st.integers(0, 3000), length=st.integers(1, 3000), known=st.integers(0, 6000), slots=st.integers(1, 64))
@example(start=0, length=771, known=689, slots=16)
def test_snapshot_positions_lie_inside_and_apart(start, length, known, slots):
    stop = start + length
    found = snapshot_positions(start, stop, known, num_slots=slots)
    assert found == sorted(set(found)) and all(start < position < stop for position in found)
    assert len(found) <= 4
    assert (length > 1) == bool(found)
    assert not found or stop - 1 - max(found) < 16
    if length >= 3 * SNAPSHOT_INTERVAL and slots >= 16:
        near = [position for position in found if position % SNAPSHOT_INTERVAL == 0 or position == known]
        # A known position less than MIN_GAP below the grid's takes its place.
        most = SNAPSHOT_INTERVAL + 16 + (MIN_GAP - 1 if max(near, default=0) == known else 0)
        assert near and stop - 1 - max(near) <= most
        assert stop - 1 - min(near) >= SNAPSHOT_INTERVAL or known in near


@given(start=st.integers(0, 3000), length=st.integers(1, 1000))
def test_a_chunk_cut_short_ends_on_the_grid_if_that_costs_little(start, length):
    stop = aligned(start, start + length)
    assert start < stop <= start + length
    assert stop == start + length or (stop % SNAPSHOT_INTERVAL == 0 and stop - start >= SNAPSHOT_INTERVAL)


def test_the_model_s_key_follows_content(tmp_path):
    spec, file, memo = make_spec("hybrid"), tmp_path / "model.safetensors", tmp_path / "memo"
    file.write_bytes(b"weights")
    first = model_key(spec, [file], "float32", memo_dir=memo)
    assert model_key(spec, [file], "float32", memo_dir=memo) == first
    assert model_key(spec, [file], "bfloat16", memo_dir=memo) != first
    assert model_key(replace(spec, logits_multiplier=2.0), [file], "float32", memo_dir=memo) != first
    copy = tmp_path / "copy.safetensors"
    copy.write_bytes(b"weights")
    assert model_key(spec, [copy], "float32", memo_dir=memo) == first
    file.write_bytes(b"weighty")
    os.utime(file, (1, 1))
    assert model_key(spec, [file], "float32", memo_dir=memo) != first
    next(iter(memo.iterdir())).write_text("{")
    assert model_key(spec, [copy], "float32", memo_dir=memo) == first


def test_names_of_weights_need_not_be_utf_8(tmp_path):
    file, memo = tmp_path / os.fsdecode(b"\xff.safetensors"), tmp_path / "memo"
    file.write_bytes(b"weights")
    assert file_digest(file, memo) == file_digest(file, memo) == file_digest(file, None)


def test_snapshots_come_out_of_the_plan():
    spec = make_spec("hybrid")
    slot, token = spec.state_bytes_per_sequence(), spec.state_bytes_per_token()
    least = 5 * 16 * token + 2 * slot
    options = {"dtype": "float32", "max_num_seqs": 4, "max_model_len": 64, "max_snapshots": 1000}
    assert plan_state_budget(spec, budget_bytes=least, **options).num_snapshot_slots == 0
    plan = plan_state_budget(spec, budget_bytes=least + 100 * slot, **options)
    assert plan.num_snapshot_slots == 40 and plan.snapshot_bytes == 40 * slot
    assert plan.total_bytes <= least + 100 * slot
    engine = EngineConfig(64, plan.num_blocks, plan.num_state_slots, num_snapshot_slots=plan.num_snapshot_slots)
    allocated = sum(tensor.nbytes for layer in allocate_states(spec, engine) for tensor in layer.values())
    assert allocated == plan.total_bytes
