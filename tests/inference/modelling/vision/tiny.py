"""Tiny checkpoints that see, made by transformers, and references of their rows and logits.

Phi-3-vision isn't in transformers: its tower is transformers' CLIP, its text model transformers' Phi-3, and what is
between them is written here a second time, one row after the other, from the description of the published model.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file
from torch.nn import functional
from transformers import (
    CLIPVisionConfig,
    CLIPVisionModel,
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Phi3Config,
    Phi3ForCausalLM,
)

TILE, PATCH, WIDTH, HIDDEN, MAX_TILES = 56, 14, 128, 32, 6
PREFIX = "model.vision_embed_tokens."
MEAN = (0.48145466, 0.4578275, 0.40821073)
STD = (0.26862954, 0.26130258, 0.27577711)


def picture(width: int, height: int, seed: int = 0) -> Image.Image:
    """A picture without noise, whose parts all differ."""
    generator = np.random.default_rng(seed)
    small = Image.fromarray(generator.integers(0, 256, (7, 9, 3), dtype=np.uint8))
    return small.resize((width, height), Image.Resampling.BICUBIC)


def randomise(model: torch.nn.Module, seed: int) -> None:
    """Weights large enough that a wrong row shows far above the tolerance."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in model.named_parameters():
            noise = torch.randn(value.shape, generator=generator)
            if "norm" in name and name.endswith("weight"):
                value.copy_(1 + 0.2 * noise)
            elif value.dim() == 1:
                value.copy_(0.2 * noise)
            else:
                value.copy_(noise * (1.0 if "embed" in name else 1.5 * value.shape[-1] ** -0.5))


def hd_transform(image: Image.Image, max_tiles: int, tile: int) -> Image.Image:
    """Phi-3-vision's resize, written from the published description with a loop over all numbers of columns."""
    turned = image.width < image.height
    if turned:
        image = image.transpose(Image.Transpose.TRANSPOSE)
    ratio = image.width / image.height
    columns = max(count for count in range(1, max_tiles + 1) if count * math.ceil(count / ratio) <= max_tiles)
    size = columns * tile, int(columns * tile / ratio)
    image = image.resize(size, Image.Resampling.BILINEAR)
    height = math.ceil(size[1] / tile) * tile
    padded = np.full((height, size[0], 3), 255, dtype=np.uint8)
    top = (height - size[1]) // 2
    padded[top : top + size[1]] = np.asarray(image)
    image = Image.fromarray(padded)
    return image.transpose(Image.Transpose.TRANSPOSE) if turned else image


@dataclass
class TinyPhi3V:
    """A checkpoint on disk, and what its parts compute in transformers."""

    directory: Path
    text: Phi3ForCausalLM
    tower: CLIPVisionModel
    others: dict[str, torch.Tensor]

    def rows_of(self, image: Image.Image) -> torch.Tensor:
        """(tokens, h): the rows of a picture, by the reference."""
        canvas = np.asarray(hd_transform(image.convert("RGB"), MAX_TILES, TILE))
        pixels = torch.from_numpy(canvas.copy()).permute(2, 0, 1).float() / 255
        pixels = (pixels - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None]
        whole = functional.interpolate(pixels[None], size=(TILE, TILE), mode="bicubic")[0]
        down, across = pixels.shape[1] // TILE, pixels.shape[2] // TILE
        parts = [[pixels[:, y * TILE :, x * TILE :][:, :TILE, :TILE] for x in range(across)] for y in range(down)]
        tokens = self._lines(parts)
        tokens.append(self.others[f"{PREFIX}glb_GN"].flatten())
        tokens += self._lines([[whole]])
        first, second = (
            (self.others[f"{PREFIX}img_projection.{n}.weight"], self.others[f"{PREFIX}img_projection.{n}.bias"])
            for n in (0, 2)
        )
        return functional.linear(functional.gelu(functional.linear(torch.stack(tokens), *first)), *second)

    def _lines(self, tiles: list[list[torch.Tensor]]) -> list[torch.Tensor]:
        """Rows of 2 x 2 patches, token by token over all tiles of a line, each line with its end."""
        side = TILE // PATCH
        features = [[self._features(tile).view(side, side, WIDTH) for tile in line] for line in tiles]
        found: list[torch.Tensor] = []
        for line in features:
            for y in range(0, side, 2):
                for tile in line:
                    for x in range(0, side, 2):
                        found.append(torch.cat([tile[y, x], tile[y, x + 1], tile[y + 1, x], tile[y + 1, x + 1]]))
                found.append(self.others[f"{PREFIX}sub_GN"].flatten())
        return found

    def _features(self, tile: torch.Tensor) -> torch.Tensor:
        return self.tower(tile[None], output_hidden_states=True).hidden_states[-2][0, 1:]

    def logits(self, tokens: list[int], image_token: int, images: list[Image.Image]) -> torch.Tensor:
        """(n, V): logits of a prompt in which the images' tokens are written out."""
        with torch.inference_mode():
            embedded = self.text.get_input_embeddings()(torch.tensor(tokens))
            places = [number for number, token in enumerate(tokens) if token == image_token]
            rows = torch.cat([self.rows_of(image) for image in images]) if images else embedded[:0]
            assert len(places) == len(rows), (len(places), len(rows))
            embedded[places] = rows
            return self.text(inputs_embeds=embedded[None], use_cache=False).logits[0].float()


def make_phi3_v(directory: Path, *, vocab_size: int = 99, seed: int = 0, max_positions: int = 512) -> TinyPhi3V:
    """Save a tiny Phi-3-vision in float32."""
    directory.mkdir(parents=True, exist_ok=True)
    text = Phi3ForCausalLM(
        Phi3Config(
            hidden_size=HIDDEN,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            vocab_size=vocab_size,
            num_key_value_heads=2,
            max_position_embeddings=max_positions,
            tie_word_embeddings=False,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
            attn_implementation="eager",
        )
    ).eval()
    tower = CLIPVisionModel(
        CLIPVisionConfig(
            hidden_size=WIDTH,
            intermediate_size=96,
            num_hidden_layers=3,
            num_attention_heads=2,
            image_size=TILE,
            patch_size=PATCH,
            hidden_act="quick_gelu",
            attn_implementation="eager",
        )
    ).eval()
    randomise(text, seed)
    randomise(tower, seed + 1)
    generator = torch.Generator().manual_seed(seed + 2)
    others = {
        f"{PREFIX}sub_GN": torch.randn(1, 1, 1, 4 * WIDTH, generator=generator),
        f"{PREFIX}glb_GN": torch.randn(1, 1, 4 * WIDTH, generator=generator),
        f"{PREFIX}img_projection.0.weight": torch.randn(HIDDEN, 4 * WIDTH, generator=generator) * (4 * WIDTH) ** -0.5,
        f"{PREFIX}img_projection.0.bias": torch.randn(HIDDEN, generator=generator),
        f"{PREFIX}img_projection.2.weight": torch.randn(HIDDEN, HIDDEN, generator=generator) * HIDDEN**-0.5 * 2,
        f"{PREFIX}img_projection.2.bias": torch.randn(HIDDEN, generator=generator),
    }
    tensors = {name: value.contiguous() for name, value in text.state_dict().items()} | others
    for name, value in tower.state_dict().items():
        bare = name.removeprefix("vision_model.")
        tensors[f"{PREFIX}img_processor.vision_model.{bare}"] = value.contiguous()
    save_file(tensors, str(directory / "model.safetensors"))
    config = text.config.to_dict() | {
        "model_type": "phi3_v",
        "architectures": ["Phi3VForCausalLM"],
        "embd_layer": {
            "embedding_cls": "image", "hd_transform_order": "sub_glb", "projection_cls": "mlp",
            "use_hd_transform": True, "with_learnable_separator": True,
        },
        "img_processor": {
            "image_dim_out": WIDTH, "model_name": "openai/clip-vit-large-patch14-336", "name": "clip_vision_model",
            "num_img_tokens": 4,
        },
    }  # fmt: skip
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "preprocessor_config.json").write_text(
        json.dumps({"image_processor_type": "Phi3VImageProcessor", "num_crops": MAX_TILES, "num_img_tokens": 4})
    )
    return TinyPhi3V(directory, text, tower, others)


GEMMA_TILE, GEMMA_SIDE, GEMMA_WINDOW = 112, 4, 9
"""A picture's 16 tokens are more than a windowed layer sees."""


@dataclass
class TinyGemma3:
    """A checkpoint on disk, and transformers' model of it."""

    directory: Path
    model: Gemma3ForConditionalGeneration

    def pixels_of(self, image: Image.Image) -> torch.Tensor:
        resized = image.convert("RGB").resize((GEMMA_TILE, GEMMA_TILE), Image.Resampling.BILINEAR)
        return (torch.from_numpy(np.asarray(resized).copy()).permute(2, 0, 1).float() / 255 - 0.5) / 0.5

    def rows_of(self, image: Image.Image) -> torch.Tensor:
        """(tokens, h): the rows of a picture."""
        return self.model.model.get_image_features(self.pixels_of(image)[None]).pooler_output[0]

    def logits(self, tokens: list[int], image_token: int, images: list[Image.Image]) -> torch.Tensor:
        """(n, V): logits of a prompt in which the images' tokens are written out."""
        ids = torch.tensor([tokens])
        options = {}
        if images:
            options = {
                "pixel_values": torch.stack([self.pixels_of(image) for image in images]),
                "token_type_ids": (ids == image_token).long(),
            }
        with torch.inference_mode():
            return self.model(input_ids=ids, use_cache=False, **options).logits[0].float()


def make_gemma3(
    directory: Path, *, vocab_size: int = 99, image_token: int = 98, seed: int = 0, is_of_hub: bool = True
) -> TinyGemma3:
    """Save a tiny Gemma 3 in float32; ``is_of_hub``: name tensors as the hub's files do, not as transformers 5."""
    directory.mkdir(parents=True, exist_ok=True)
    text = {
        "hidden_size": HIDDEN, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 8, "vocab_size": vocab_size, "max_position_embeddings": 512,
        "sliding_window": GEMMA_WINDOW, "query_pre_attn_scalar": 8, "pad_token_id": 0, "bos_token_id": 1,
        "eos_token_id": 2, "tie_word_embeddings": False,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    }  # fmt: skip
    vision = {
        "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
        "image_size": GEMMA_TILE, "patch_size": 14, "vision_use_head": False,
    }  # fmt: skip
    config = Gemma3Config(
        text_config=text,
        vision_config=vision,
        mm_tokens_per_image=GEMMA_SIDE**2,
        image_token_id=image_token,
        tie_word_embeddings=False,  # a tied head of a random model says the last token again
    )
    config._attn_implementation = "eager"
    model = Gemma3ForConditionalGeneration(config).float().eval()
    randomise(model, seed)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "norm" in name and "vision_tower" not in name:
                value.sub_(1 if value.mean() > 0.5 else 0)  # Gemma's norms are stored around zero
        model.get_input_embeddings().weight.mul_(0.3)  # its multiplier is more than that
    model.save_pretrained(directory, save_original_format=is_of_hub)
    return TinyGemma3(directory, model)
