"""Read the text model of a checkpoint that sees pictures or hears too: ``text_config``, and the tensors beside it."""

from __future__ import annotations

from collections.abc import Mapping

from inference.errors import CorruptCheckpoint
from inference.modelling.families.checks import OTHER_PARTS, IgnoredTensors
from inference.modelling.families.config import CheckpointConfig, CheckpointView
from inference.modelling.families.config_key_tables import COMMON, Table, harmless
from inference.modelling.families.config_keys import Members

PREFIXES = ("model.language_model.", "language_model.model.", "model.text_model.", "model.", "")
"""What stands before the layers of a text model, within another model or alone."""
OUTER_KEYS = ("tie_word_embeddings", "quantization_config")
"""Keys around ``text_config`` that hold for the text model."""


def around(text: Table) -> Table:
    """The keys of a model whose text model has those of ``text``."""
    return {
        **COMMON,
        "text_config": Members(text),
        **harmless(
            "pictures and sound aren't read",
            "projector_hidden_size", "merged_hidden_size", "video_token_index",
            "vision_config", "image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id",
            "mm_tokens_per_image", "boi_token_index", "eoi_token_index", "image_token_index", "projector_hidden_act",
            "audio_config", "audio_token_id", "boa_token_id", "eoa_token_id", "eoa_token_index", "boi_token_id",
            "eoi_token_id", "audio_soft_tokens_per_image", "vision_soft_tokens_per_image",
            "vision_feature_layer", "multimodal_projector_bias", "spatial_merge_size", "language_model_only",
            "vision_token_id", "projector_bias", "projector_use_layernorm", "downsample_factor", "scale_factor",
        ),
    }  # fmt: skip


def text_part(view: CheckpointView, *, reads_others: bool = False) -> CheckpointView:
    """config.json as a text model's, which it is where it has no ``text_config``.

    Args:
        reads_others: The family reads the tensors beside the text model, and says so itself.

    Raises:
        CorruptCheckpoint: ``text_config`` is no object.
    """
    others = sum(bool(OTHER_PARTS.names.search(name)) for name in view.tensors)
    if others and not reads_others:
        view.facts.add("vision", "left out", f"{others} tensors beside the text model; pictures and sound aren't read")
    if "text_config" not in view.config:
        return view
    text = view.config.get("text_config")
    if not isinstance(text, Mapping):
        raise CorruptCheckpoint(
            f"config.json: text_config is {str(text)[:60]!r}; it must be an object.", param="text_config"
        )
    outer = {key: view.config.get(key) for key in OUTER_KEYS if key in view.config}
    return CheckpointView(CheckpointConfig({**text, **outer}), view.tensors, view.facts)


def parts_beside(view: CheckpointView, text: CheckpointView) -> tuple[IgnoredTensors, ...]:
    """Tensors beside the text model ``text`` that are left out; none where ``view`` itself is one: they are refused."""
    return () if text is view else (OTHER_PARTS,)
