"""The tower gives the rows of transformers' CLIP and SigLIP, tile by tile."""

import pytest
import torch
from transformers import CLIPVisionConfig, CLIPVisionModel, SiglipVisionConfig, SiglipVisionModel

from inference.modelling.families.config import CheckpointConfig, CheckpointView, Facts, TensorInfo, TensorTable
from inference.modelling.families.vision_part import TowerOptions, read_tower
from inference.modelling.vision.tower import VisionTower
from tests.inference.modelling.vision.tiny import randomise

SIZES = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4, "image_size": 56,
    "patch_size": 14, "attn_implementation": "eager",
}  # fmt: skip


def load(model, prefix: str, options: TowerOptions) -> VisionTower:
    """Our tower with the weights of one of transformers'."""
    tensors = {prefix + name.removeprefix("vision_model."): value for name, value in model.state_dict().items()}
    infos = {name: TensorInfo("F32", tuple(value.shape), "f") for name, value in tensors.items()}
    spec, sources = read_tower(CheckpointView(CheckpointConfig({}), TensorTable(infos), Facts()), options)
    tower = VisionTower(spec)
    shapes = spec.parameter_shapes()
    assert shapes.keys() == sources.keys() == dict(tower.named_parameters()).keys()
    for name, parameter in tower.named_parameters():
        value = torch.cat([tensors[piece.name] for piece in sources[name].pieces])
        parameter.copy_(value.reshape(shapes[name]))
    return tower


@pytest.mark.parametrize("left_out", [0, 1])
def test_clip(left_out):
    model = CLIPVisionModel(CLIPVisionConfig(**SIZES, hidden_act="quick_gelu")).eval()
    randomise(model, 3)
    options = TowerOptions("t.", "quick_gelu", 1e-5, num_heads=4, num_left_out=left_out, first_norm="pre_layrnorm")
    tower = load(model, "t.", options)
    tiles = torch.randn(3, 3, 56, 56, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        expected = model(tiles, output_hidden_states=True).hidden_states[-1 - left_out][:, 1:]
        torch.testing.assert_close(tower(tiles), expected, atol=1e-4, rtol=1e-4)
    assert expected.std() > 0.5


def test_siglip():
    config = SiglipVisionConfig(**SIZES, hidden_act="gelu_pytorch_tanh", vision_use_head=False)
    model = SiglipVisionModel(config).eval()
    randomise(model, 4)
    options = TowerOptions("t.", "gelu_tanh", 1e-6, num_heads=4, last_norm="post_layernorm")
    tower = load(model, "t.", options)
    tiles = torch.randn(2, 3, 56, 56, generator=torch.Generator().manual_seed(2))
    with torch.inference_mode():
        expected = model(tiles).last_hidden_state
        torch.testing.assert_close(tower(tiles), expected, atol=1e-4, rtol=1e-4)
    assert expected.std() > 0.5
