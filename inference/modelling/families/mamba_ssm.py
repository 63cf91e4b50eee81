"""Read config.json of a Mamba model as its authors' package ``mamba_ssm`` writes it.

Source: https://github.com/state-spaces/mamba, ``MambaConfig``, and the arguments of ``Mamba`` and ``Mamba2``, which
``ssm_cfg`` holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inference.errors import CorruptCheckpoint
from inference.modelling.families.config import MAX_SIZE, CheckpointView
from inference.modelling.families.config_key_tables import Table, harmless, used
from inference.modelling.families.config_keys import Only

RENAMED = {
    "d_state": "state_size", "d_conv": "conv_kernel", "dt_rank": "time_step_rank", "headdim": "head_dim",
    "ngroups": "n_groups", "dt_limit": "time_step_limit",
}  # fmt: skip
"""Members of ``ssm_cfg`` to transformers' keys."""
GROUPS = 1
"""Of Mamba-2, where ``ssm_cfg`` has none; transformers' default is another."""

OUTER: Table = {
    **used("tie_embeddings"),
    "d_intermediate": Only((0,), "layers have no MLP"),
    "attn_layer_idx": Only(([],), "no layer attends"),
    "attn_cfg": Only(({},), "no layer attends"),
}
SSM_CFG: Table = {
    **used("d_state", "d_conv"),
    **harmless("the shapes say it", "expand", "bias", "conv_bias", "d_ssm"),
    **harmless("start values of a training", "dt_min", "dt_max", "dt_init", "dt_scale", "dt_init_floor"),
    **harmless("start values of a training", "A_init_range", "conv_init"),
    **harmless("which kernel computes it", "use_fast_path", "use_mem_eff_path", "chunk_size"),
}
SSM_CFG_1: Table = {**SSM_CFG, **used("dt_rank"), "layer": Only(("Mamba1",), "the layers are Mamba-1's")}
SSM_CFG_2: Table = {
    **SSM_CFG,
    **used("headdim", "ngroups", "dt_limit"),
    "layer": Only(("Mamba2",), "the layers are Mamba-2's"),
    "D_has_hdim": Only((False,), "D is one number for each head"),
    "rmsnorm": Only((True,), "the gated norm is there"),
    "norm_before_gate": Only((False,), "the gate comes before the norm"),
}


def renamed_config(view: CheckpointView) -> CheckpointView:
    """The view with transformers' keys; the same view if config.json isn't the package's.

    Raises:
        CorruptCheckpoint: ``ssm_cfg`` is no object.
    """
    config = view.config
    changes: dict[str, Any] = {}
    if "tie_word_embeddings" not in config and "tie_embeddings" in config:
        changes["tie_word_embeddings"] = config.get("tie_embeddings")
    if "d_model" in config and "hidden_size" not in config:
        inner = config.get("ssm_cfg", default={})
        if not isinstance(inner, Mapping):
            raise CorruptCheckpoint(
                f"config.json: ssm_cfg is {str(inner)[:60]!r}; it must be an object.", param="ssm_cfg"
            )
        changes |= {"hidden_size": config.get("d_model"), "n_groups": GROUPS}
        changes |= {RENAMED[key]: value for key, value in inner.items() if key in RENAMED}
        if "vocab_size" in config:
            # The embedding has this many rows more than there are tokens.
            multiple = config.integer("pad_vocab_size_multiple", default=8, high=MAX_SIZE)
            changes["vocab_size"] = -(-config.integer("vocab_size") // multiple) * multiple
    if not changes:
        return view
    return view.changed(**changes)
