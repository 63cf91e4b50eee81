"""Phi-3-vision and Phi-3.5-vision: Phi-3 with CLIP's tower, tiles of 336 pixels and learned separators.

Source: https://arxiv.org/abs/2404.14219, section 6, and the published files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from inference.errors import UnsupportedArchitecture
from inference.modelling.families.checks import IgnoredTensors
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import Table
from inference.modelling.families.config_keys import Harmless, Members, Only
from inference.modelling.families.phi3 import CONFIG_KEYS as PHI3_KEYS
from inference.modelling.families.phi3 import build_spec as build_phi3
from inference.modelling.families.vision_part import (
    TowerOptions,
    colours,
    preprocessor_config,
    read_tower,
    vision_part,
    with_parameters,
)
from inference.modelling.spec import ModelSpec
from inference.modelling.specs.sources import Piece, Source, tensor
from inference.modelling.vision.specs import TileProjectorSpec, VisionSpec
from inference.values.images import ImageLayout, ImagePrompt

PREFIX = "model.vision_embed_tokens."
OWNED = re.compile(re.escape(PREFIX))
VISION = IgnoredTensors(OWNED, "the part that sees, which is read by itself")

CONFIG_KEYS: Mapping[str, Table] = {
    "phi3_v": {
        **PHI3_KEYS["phi3"],
        "embd_layer": Members(
            {
                "embedding_cls": Only(("image",), "its embeddings are a table and images"),
                "hd_transform_order": Only(("sub_glb",), "the whole image comes last"),
                "projection_cls": Only(("mlp",), "the projector is an MLP"),
                "use_hd_transform": Only((True,), "images come in tiles"),
                "with_learnable_separator": Only((True,), "separators are learned"),
            }
        ),
        "img_processor": Members(
            {
                "name": Only(("clip_vision_model",), "the tower is CLIP's"),
                "model_name": Harmless("where the tower came from; its tensors say the sizes"),
                "image_dim_out": Harmless("the tower's width, which its tensors say"),
                "num_img_tokens": Harmless("tokens of a tile, which the tower says"),
                "layer_idx": Only((-2,), "the rows are those before the last layer"),
                "type_feature": Only(("patch",), "the class row is left out"),
            }
        ),
    }
}

UNUSED = (
    IgnoredTensors(re.compile(r"\.wte\.weight$"), "the text model's embedding once more"),
    IgnoredTensors(re.compile(r"\.post_layernorm\."), "behind the last layer, whose rows aren't used"),
    IgnoredTensors(re.compile(r"\.position_ids$"), "numbers from 0 on"),
)
MEAN = (0.48145466, 0.4578275, 0.40821073)
STD = (0.26862954, 0.26130258, 0.27577711)
"""CLIP's."""
MAX_TILES = 16
"""``num_crops`` of a checkpoint that doesn't say."""
MOST_TILES = 64


def build_spec(view: CheckpointView) -> ModelSpec:
    text = build_phi3(view, "phi3_v", ignored=(VISION,))
    return replace(text, vision=vision_part(view, OWNED, lambda found: _read(found, text), ignored=_unused(view)))


def _unused(view: CheckpointView) -> tuple[IgnoredTensors, ...]:
    """What isn't needed, the last layer of the tower included."""
    base = f"{PREFIX}img_processor.vision_model.encoder.layers."
    numbers = [int(name.removeprefix(base).split(".")[0]) for name in view.tensors if name.startswith(base)]
    last = re.compile(re.escape(f"{base}{max(numbers, default=0)}."))
    return (*UNUSED, IgnoredTensors(last, "the rows are those before the last layer"))


def _read(view: CheckpointView, text: ModelSpec) -> VisionSpec:
    options = TowerOptions(
        f"{PREFIX}img_processor.vision_model.", "quick_gelu", 1e-5, num_left_out=1, first_norm="pre_layrnorm"
    )
    tower, tower_sources = read_tower(view, options)
    if tower.side % 2 or not tower.has_class_row:
        raise UnsupportedArchitecture(
            f"the vision tower has {tower.side} patches along a side; an even number and a class row are needed.",
            param="img_processor",
        )
    config = preprocessor_config(view)
    spec = VisionSpec(
        hidden_size=text.hidden_size,
        tower=tower,
        projector=TileProjectorSpec(),
        layout=ImageLayout(
            "tiles", tower.tile, tower.side // 2, config.integer("num_crops", default=MAX_TILES, high=MOST_TILES)
        ),
        prompt=ImagePrompt(placeholder="<|image|>", numbered="<|image_{n}|>"),
        mean=colours(config, "image_mean", MEAN),
        std=colours(config, "image_std", STD),
    )
    projector = {
        "line_end": Source((Piece(f"{PREFIX}sub_GN", reshape=(4 * tower.width,)),)),
        "part_end": Source((Piece(f"{PREFIX}glb_GN", reshape=(4 * tower.width,)),)),
    }
    for name, number in (("fc1", 0), ("fc2", 2)):
        projector |= {
            f"{name}.{leaf}": tensor(f"{PREFIX}img_projection.{number}.{leaf}") for leaf in ("weight", "bias")
        }
    return with_parameters(spec, tower_sources, projector)
