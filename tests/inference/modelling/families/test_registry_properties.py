"""Rules that hold whatever a checkpoint says: errors stay within the tree, shapes agree with the loader."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from inference.errors import CheckpointError
from inference.modelling.families.checks import source_shape
from inference.modelling.families.config import CheckpointConfig, CheckpointView, Facts, TensorInfo, TensorTable
from inference.modelling.families.registry import family_builder
from inference.modelling.sources import stored_names
from inference.modelling.spec import ModelSpec
from inference.modelling.specs.sources import Piece, Source
from inference.modelling.weights.files import TensorFiles
from inference.modelling.weights.loader import _assemble
from tests.inference.modelling.harness import read_view
from tests.inference.modelling.huggingface import make_checkpoint, old_naming, read_config
from tests.inference.modelling.test_network_attention import CASES
from tests.inference.modelling.test_network_dense import CASES as DENSE_CASES
from tests.inference.modelling.test_network_dense import tiny_config

OLDER = (
    "llama-rope-llama3",
    "mistral-window-shorter-than-prompt",
    "qwen3-window-by-type",
    "qwen2_moe-window-normalised",
    "mixtral",
    "phi3-longrope-short",
    "gemma2",
    "deepseek_v2-q-lora-groups-yarn",
    "deepseek_v3-bias-yarn",
)
CONFIGS = {name: CASES[name] for name in OLDER} | {
    name: tiny_config(*case) for name, case in DENSE_CASES.items() if name == case[0]
}

junk = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 300)
    | st.sampled_from([0, 1 << 31, 1 << 70, -1])
    | st.floats(allow_nan=True, allow_infinity=True)
    | st.sampled_from(["", "silu", "yarn", "longrope", "default", "dynamic", "llama3", "x" * 200]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["rope_type", "type", "factor", "rope_theta", "partial_rotary_factor", "full_attention"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=6,
)


class Checkpoints(dict):
    """Case name to (config, tensors), with a representation that fits on a line."""

    def __repr__(self) -> str:
        return f"Checkpoints({', '.join(self)})"


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    found = Checkpoints()
    for name, config in CONFIGS.items():
        directory, _ = make_checkpoint(config, tmp_path_factory.mktemp("checkpoint"))
        found[name] = (read_config(directory), dict(read_view(directory).tensors))
    return found


@settings(
    max_examples=400,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_damaged_checkpoints_give_a_spec_or_a_checkpoint_error(checkpoints, data):
    config, tensors = copy.deepcopy(checkpoints[data.draw(st.sampled_from(sorted(CONFIGS)))])
    model_type = config["model_type"]
    if data.draw(st.booleans()):
        config = old_naming(config)
    for key in data.draw(st.lists(st.sampled_from(sorted(set(config) - {"model_type"})), max_size=3)):
        if data.draw(st.integers(0, 3)):
            config[key] = data.draw(junk)
        else:
            config.pop(key, None)
    for name in data.draw(st.lists(st.sampled_from(sorted(tensors)), max_size=2)):
        if data.draw(st.booleans()):
            shape = tuple(data.draw(st.lists(st.integers(0, 64), max_size=4)))
            tensors[name] = TensorInfo(data.draw(st.sampled_from(["F32", "BF16", "I64", "F8_E4M3"])), shape)
        else:
            tensors.pop(name, None)
    view = CheckpointView(CheckpointConfig(config), TensorTable(tensors), Facts())
    try:
        spec = family_builder(model_type)(view)
    except CheckpointError as error:
        assert len(error.message) < 1000
        return
    assert ModelSpec.from_dict(spec.to_dict()) == spec
    assert spec.parameters.keys() == spec.parameter_shapes().keys()
    assert all(fact.evidence for fact in view.facts.facts)


@st.composite
def sources(draw) -> tuple[Source, dict[str, tuple[int, ...]]]:
    """A source of one or two pieces, and shapes of its tensors that may or may not fit."""
    shape = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=3)))
    shapes = {"a": shape, "b": shape if draw(st.booleans()) else tuple(draw(st.lists(st.integers(1, 6), max_size=3)))}
    pieces = []
    for name in draw(st.sampled_from([("a",), ("a", "b")])):
        option = draw(st.sampled_from(["plain", "index", "transpose", "rows", "per_group", "stride", "reshape"]))
        numbers = sorted(draw(st.lists(st.integers(0, 4), min_size=2, max_size=2, unique=True)))
        pieces.append(
            {
                "plain": Piece(name),
                "index": Piece(name, index=numbers[0]),
                "transpose": Piece(name, transpose=True),
                "rows": Piece(name, rows=(numbers[0], numbers[1])),
                "per_group": Piece(name, per_group=(numbers[1], 0, max(1, numbers[0]))),
                "stride": Piece(name, stride=(numbers[0] % 2, 2)),
                "reshape": Piece(name, reshape=(numbers[0] + 1, numbers[1])),
            }[option]
        )
    return Source(tuple(pieces)), shapes


@settings(
    max_examples=200,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(case=sources())
def test_shape_of_a_source_is_what_the_loader_reads(tmp_path_factory, case):
    source, shapes = case
    table = TensorTable({name: TensorInfo("F32", shape) for name, shape in shapes.items()})
    try:
        shape = source_shape(source, table)
    except CheckpointError:
        return
    path = tmp_path_factory.mktemp("source") / "model.safetensors"
    save_file({name: torch.randn(shapes[name]) for name in shapes}, path)
    with TensorFiles([path], [stored_names(source)]) as files:
        files.move()
        found = _assemble(files, source, torch.Size(shape), "parameter", torch.float32)
    assert tuple(found.shape) == shape
