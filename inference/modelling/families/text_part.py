"""Read the text model of a checkpoint that sees pictures or hears too: ``text_config``, and the tensors beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from inference.errors import CorruptCheckpoint
from inference.modelling.families.checks import OTHER_PARTS
from inference.modelling.families.config import CheckpointConfig, CheckpointView
from inference.modelling.families.config_key_tables import COMMON, Table, harmless
from inference.modelling.families.config_keys import Harmless, Members

TIED = "tie_word_embeddings"
OUTER_KEYS = (TIED, "quantization_config")
"""Keys around ``text_config`` that hold for the text model."""
SEEING_KEYS = {"vision_config", "mm_vision_tower"}
"""What a config has that holds the text model's keys beside the others: Qwen2-VL's, and LLaVA's by its authors."""


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
            "vision_feature_select_strategy", "image_seq_length", "video_seq_length", "image_grid_pinpoints",
            "spatial_pool_mode", "spatial_pool_stride", "vision_aspect_ratio", "use_image_newline_parameter",
            "projector_layernorm_eps", "adapter_layer_norm_eps", "alignment_intermediate_size", "downsample_ratio",
            "high_res_vision_config", "vq_config", "perceiver_config", "visual_indicator_token_ids",
            "vision_use_cls_token", "projector_pooling_ratio", "insert_layer_id", "downsample_mode",
            "drop_vision_last_layer", "merge_kernel_size", "merger_times", "image_size", "patch_size", "num_channels",
            "image_start_id", "image_end_id", "slice_start_id", "slice_end_id", "newline_id", "force_image_size",
            "vision_hidden_size", "video_pruning_rate", "video_temporal_patch_size", "image_start_token_id",
            "image_end_token_id", "video_start_token_id", "video_end_token_id", "audio_token_index", "encoder_config",
            "projector_config", "has_lora_adapter", "downsample_rate", "window_size", "position_id_per_seconds",
            "seconds_per_chunk", "audio_start_token_id", "audio_end_token_id", "user_token_id", "qformer_config",
            "deepstack_layer_map", "spatial_vision_layer", "spatial_target_layers", "projector_dropout",
            "density_router_hidden_size", "density_router_threshold", "density_router_loss_weight", "im_start_id",
            "im_end_id", "im_newline_id", "freeze_mm_mlp_adapter", "freeze_mm_vision_resampler", "image_aspect_ratio",
            "image_crop_resolution", "image_split_resolution", "mm_hidden_size", "mm_patch_merge_type",
            "mm_projector_lr", "mm_projector_type", "mm_resampler_type", "mm_use_im_patch_token",
            "mm_use_im_start_end", "mm_vision_select_feature", "mm_vision_select_layer", "mm_vision_tower",
            "mm_vision_tower_lr", "mm_spatial_pool_mode", "mm_tunable_parts", "tokenizer_model_max_length",
            "tokenizer_padding_side", "tune_mm_mlp_adapter", "tune_mm_vision_resampler", "unfreeze_mm_vision_tower",
            "use_mm_proj", "add_faster_video", "add_time_instruction", "faster_token_stride", "force_sample",
            "mm_newline_position", "mm_spatial_pool_stride", "projector_patch_to_query_dict",
            "max_value_projector_patch_to_query_dict",
        ),
        "ignore_index": Harmless("training only"),
    }  # fmt: skip


def text_part(view: CheckpointView, *, reads_others: bool = False, key: str = "text_config") -> CheckpointView:
    """config.json as a text model's, which it is where it has no ``key``.

    Args:
        reads_others: The family reads the tensors beside the text model, and says so itself.

    Raises:
        CorruptCheckpoint: The member ``key`` is no object.
    """
    others = 0 if view.is_part or reads_others else sum(bool(OTHER_PARTS.names.search(name)) for name in view.tensors)
    if others:
        view.facts.add("vision", "left out", f"{others} tensors beside the text model; pictures and sound aren't read")
    if key not in view.config:
        return replace(view, is_part=True) if SEEING_KEYS & view.config.values.keys() else view
    text = view.config.get(key)
    if not isinstance(text, Mapping):
        raise CorruptCheckpoint(f"config.json: {key} is {str(text)[:60]!r}; it must be an object.", param=key)
    outer = {name: view.config.get(name) for name in OUTER_KEYS if name in view.config}
    if (outer.get(TIED), text.get(TIED)) in ((True, False), (False, True)):
        # Files of transformers 4 and 5 state it in the one place or in the other, beside the other's default.
        outer[TIED] = not any(name.endswith("lm_head.weight") for name in view.tensors)
    return replace(view, config=CheckpointConfig({**text, **outer}), is_part=True)
