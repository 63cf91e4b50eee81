"""Heads for multi-token prediction: read beside the model, left out with a warning where they aren't whole."""

from __future__ import annotations

import json

import pytest
from safetensors.torch import load_file, save_file

from inference.modelling.families.registry import family_builder
from inference.modelling.spec import ModelSpec
from tests.inference.modelling.harness import load_directory, read_view
from tests.inference.modelling.heads import CASES, write_checkpoint


@pytest.mark.parametrize("name", CASES)
def test_the_model_is_the_same_without_its_head(name, tmp_path):
    write_checkpoint(name, tmp_path)
    spec = load_directory(tmp_path).spec
    assert spec.prediction_head is not None
    assert ModelSpec.from_dict(json.loads(spec.to_json())) == spec
    assert all(not source.startswith(CASES[name].prefix) for item in spec.parameters.values()
               for source in item.tensor_names())  # fmt: skip
    prefix = CASES[name].prefix
    path = tmp_path / "model.safetensors"
    save_file({key: value for key, value in load_file(path).items() if not key.startswith(prefix)}, path)
    assert load_directory(tmp_path).spec == spec.without_head()


@pytest.mark.parametrize("name", CASES)
def test_a_head_that_is_not_whole_is_left_out_with_a_warning(name, tmp_path):
    write_checkpoint(name, tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    gone = next(key for key in tensors if key.startswith(CASES[name].prefix) and "o_proj" in key)
    del tensors[gone]
    save_file(tensors, path)
    view = read_view(tmp_path)
    spec = family_builder(view.config.string("model_type"))(view)
    assert spec.prediction_head is None
    assert any("multi-token prediction is left out" in warning for warning in view.facts.warnings)


def warnings_of(directory):
    view = read_view(directory)
    spec = family_builder(view.config.string("model_type"))(view)
    assert spec.prediction_head is None
    return view.facts.warnings


def test_a_matrix_of_another_shape_leaves_the_head_out(tmp_path):
    write_checkpoint("glm4_moe", tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    name = f"{CASES['glm4_moe'].prefix}eh_proj.weight"
    save_file(tensors | {name: tensors[name][:, :-1].contiguous()}, path)
    assert any("eh_proj" in warning for warning in warnings_of(tmp_path))


def test_a_recurrent_head_is_left_out(tmp_path):
    write_checkpoint("nemotron_h", tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = {key: value for key, value in load_file(path).items() if not key.startswith("mtp.layers.0.mixer.")}
    mamba = {key: value.clone() for key, value in tensors.items() if ".layers.0.mixer." in key}
    start = next(iter(mamba)).split("layers.0.")[0]
    save_file(tensors | {key.replace(start, "mtp."): value for key, value in mamba.items()}, path)
    assert any("recurrent" in warning for warning in warnings_of(tmp_path))
