"""What the attention families say of checkpoints that are unknown, incomplete, or contradict themselves."""

from __future__ import annotations

import copy

import pytest
from transformers import (
    DeepseekV3Config,
    Gemma2Config,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    Phi3Config,
    Qwen3MoeConfig,
)

from inference.errors import (
    CheckpointError,
    CorruptCheckpoint,
    MissingTensor,
    TensorShapeMismatch,
    UnsupportedArchitecture,
    UnsupportedFormat,
)
from inference.modelling.families.config import (
    CheckpointConfig,
    CheckpointView,
    Confidence,
    Facts,
    TensorInfo,
    TensorTable,
)
from inference.modelling.families.registry import family_builder
from inference.modelling.spec import ModelSpec
from tests.inference.modelling.harness import read_view
from tests.inference.modelling.huggingface import make_checkpoint, old_naming, read_config
from tests.inference.modelling.test_network_attention import BASE, LLAMA3, MLA, MOE, YARN, longrope


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """Name to (config, tensor table) of one small checkpoint for each family."""
    configs = {
        "llama": LlamaConfig(**BASE | {"num_hidden_layers": 3}),
        "mistral": MistralConfig(**BASE | {"sliding_window": 7}),
        "qwen3_moe": Qwen3MoeConfig(**BASE | MOE | {"num_experts": 4, "head_dim": 16}),
        "mixtral": MixtralConfig(**BASE | {"num_local_experts": 4}),
        "phi3": Phi3Config(**BASE | {"original_max_position_embeddings": 64, "rope_parameters": longrope(4, 64)}),
        "gemma2": Gemma2Config(**BASE | {"head_dim": 16, "tie_word_embeddings": True}),
        "deepseek_v3": DeepseekV3Config(
            **BASE | MLA | {"q_lora_rank": 20, "n_group": 4, "topk_group": 2, "rope_parameters": YARN}
        ),
    }
    found = {}
    for name, config in configs.items():
        directory, _ = make_checkpoint(config, tmp_path_factory.mktemp(name))
        found[name] = (read_config(directory), dict(read_view(directory).tensors))
    return found


class Edited:
    """A checkpoint's config and table, to be changed before it is read."""

    def __init__(self, config: dict, tensors: dict[str, TensorInfo]) -> None:
        self.config, self.tensors = copy.deepcopy(config), dict(tensors)
        self.facts = Facts()

    def reshape(self, name: str, *shape: int) -> None:
        assert name in self.tensors
        self.tensors[name] = TensorInfo("F32", shape)

    def build(self) -> ModelSpec:
        view = CheckpointView(CheckpointConfig(self.config), TensorTable(self.tensors), self.facts)
        return family_builder(self.config["model_type"])(view)

    def fact(self, name: str):
        return next(fact for fact in self.facts.facts if fact.name == name)

    def refused(self, kind: type[CheckpointError], *parts: str) -> CheckpointError:
        """Building fails with exactly this class and a message that has all the parts."""
        with pytest.raises(CheckpointError) as caught:
            self.build()
        assert type(caught.value) is kind, caught.value
        for part in parts:
            assert part in caught.value.message
        return caught.value


@pytest.fixture
def edited(checkpoints):
    return lambda name: Edited(*checkpoints[name])


# --- names and layers --------------------------------------------------------------------------


def test_no_embedding_names_what_is_there(edited):
    case = edited("llama")
    case.tensors = {"transformer.wte.weight": TensorInfo("F32", (99, 32))}
    case.refused(UnsupportedArchitecture, "model.embed_tokens.weight", "transformer.wte.weight")


def test_no_layers(edited):
    case = edited("llama")
    case.tensors = {name: info for name, info in case.tensors.items() if ".layers." not in name}
    case.refused(UnsupportedArchitecture, "model.layers.0.")


def test_a_gap_in_the_layers(edited):
    case = edited("llama")
    case.tensors = {name: info for name, info in case.tensors.items() if ".layers.1." not in name}
    case.refused(MissingTensor, "layer 1 is missing")


def test_fewer_layers_than_config_says(edited):
    case = edited("llama")
    case.config["num_hidden_layers"] = 5
    case.refused(MissingTensor, "5 layers", "layer 2")


def test_more_layers_than_config_says(edited):
    case = edited("llama")
    case.config["num_hidden_layers"] = 2
    case.refused(TensorShapeMismatch, "2 layers", "have 3")


def test_prediction_layers_of_deepseek_are_left_out_without_a_warning(edited):
    case = edited("deepseek_v3")
    case.config["num_hidden_layers"] = 2
    assert len(case.build().layers) == 2
    assert case.facts.warnings == []
    case.config["num_nextn_predict_layers"] = 0
    case.refused(TensorShapeMismatch, "2 layers", "have 3")


@pytest.mark.parametrize("part", ["self_attn.k_proj.weight", "mlp.up_proj.weight", "input_layernorm.weight"])
def test_a_missing_tensor_is_named(edited, part):
    case = edited("llama")
    del case.tensors[f"model.layers.1.{part}"]
    case.refused(MissingTensor, f"model.layers.1.{part}")


def test_a_missing_expert_is_named(edited):
    case = edited("mixtral")
    del case.tensors["model.layers.1.block_sparse_moe.experts.2.w2.weight"]
    case.refused(MissingTensor, "model.layers.1.block_sparse_moe.experts.2.w2.weight")


def test_one_bias_of_three_is_refused(edited):
    case = edited("llama")
    case.config["attention_bias"] = True
    case.tensors["model.layers.0.self_attn.q_proj.bias"] = TensorInfo("F32", (32,))
    case.refused(MissingTensor, "model.layers.0.self_attn.k_proj.bias")


def test_names_without_a_prefix_are_found(edited):
    case = edited("llama")
    case.tensors = {name.removeprefix("model."): info for name, info in case.tensors.items()}
    assert case.build().parameters["embed_tokens.weight"].pieces[0].name == "embed_tokens.weight"


def test_tensors_that_nothing_reads_are_refused(edited):
    case = edited("llama")
    case.tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = TensorInfo("F32", (4,))
    case.build()
    assert case.facts.warnings == []
    case.tensors["model.layers.0.self_attn.sinks"] = TensorInfo("F32", (4,))
    case.refused(UnsupportedArchitecture, "model.layers.0.self_attn.sinks")


# --- shapes against config ---------------------------------------------------------------------


def test_a_wrong_shape_names_both(edited):
    case = edited("llama")
    case.reshape("model.layers.2.mlp.down_proj.weight", 31, 48)
    case.refused(TensorShapeMismatch, "model.layers.2.mlp.down_proj.weight", "[31, 48]", "[32, 48]")


def test_one_expert_of_another_size_is_named(edited):
    case = edited("qwen3_moe")
    case.reshape("model.layers.0.mlp.experts.3.down_proj.weight", 32, 23)
    case.refused(TensorShapeMismatch, "expert 3")


@pytest.mark.parametrize(
    ("name", "change", "found"),
    [
        ("llama", {"head_dim": 16}, "have 8"),
        ("llama", {"num_key_value_heads": 4}, "have 2"),
        ("llama", {"intermediate_size": 47}, "have 48"),
        ("llama", {"vocab_size": 98}, "have 99"),
        ("llama", {"hidden_size": 31}, "have 32"),
        ("phi3", {"num_key_value_heads": 4}, "have 2"),
        ("phi3", {"head_dim": 16}, "have 8"),
        ("qwen3_moe", {"head_dim": 32}, "have 16"),
        ("qwen3_moe", {"num_attention_heads": 2}, "have 4"),
        ("qwen3_moe", {"num_local_experts": 8}, "have 4"),
        ("qwen3_moe", {"moe_intermediate_size": 23}, "have 24"),
        ("mixtral", {"num_local_experts": 8}, "have 4"),
        ("mixtral", {"intermediate_size": 47}, "have 48"),
        ("deepseek_v3", {"q_lora_rank": 99}, "have 20"),
        ("deepseek_v3", {"kv_lora_rank": 99}, "have 16"),
        ("deepseek_v3", {"n_routed_experts": 9}, "have 8"),
        ("deepseek_v3", {"n_shared_experts": 1}, "are 48 wide"),
        ("deepseek_v3", {"moe_intermediate_size": 23}, "have 24"),
    ],
)
def test_sizes_that_contradict_the_shapes_are_refused_with_both(edited, name, change, found):
    case = edited(name)
    case.config |= change
    ((key, value),) = change.items()
    error = case.refused(TensorShapeMismatch, f"{key} {value}", found)
    assert error.param == key


def test_heads_that_the_rows_cannot_be_split_into(edited):
    case = edited("llama")
    case.config |= {"num_attention_heads": 5}
    del case.config["head_dim"]
    case.refused(TensorShapeMismatch, "5 attention heads", "32 rows")


def test_unknown_head_count_is_inferred_with_a_warning(edited):
    case = edited("llama")
    del case.config["num_attention_heads"], case.config["head_dim"]
    for number in range(3):
        for name, rows in (("q_proj", 256), ("k_proj", 128), ("v_proj", 128)):
            case.reshape(f"model.layers.{number}.self_attn.{name}.weight", rows, 32)
        case.reshape(f"model.layers.{number}.self_attn.o_proj.weight", 32, 256)
    assert case.build().layers[0].token_mixer.num_heads == 4
    assert case.fact("attention.head_dim").confidence is Confidence.LOW
    assert any("is inferred" in warning for warning in case.facts.warnings)


def test_unknown_head_count_that_cannot_be_inferred(edited):
    case = edited("llama")
    del case.config["num_attention_heads"], case.config["head_dim"]
    case.refused(UnsupportedArchitecture, "num_attention_heads")


def test_an_operator_sets_head_dim(edited):
    case = edited("llama")
    case.facts = Facts({"attention.head_dim": 16, "rope.theta": 777.0})
    mixer = case.build().layers[0].token_mixer
    assert (mixer.num_heads, mixer.num_kv_heads, mixer.head_dim, mixer.rope.theta) == (2, 1, 16, 777.0)
    assert case.fact("attention.head_dim").confidence is Confidence.OVERRIDE


@pytest.mark.parametrize(
    ("name", "value"), [("attention.head_dim", "wide"), ("rope.theta", -1), ("max_position_embeddings", 0.5)]
)
def test_a_senseless_override_is_refused(edited, name, value):
    case = edited("llama")
    case.facts = Facts({name: value})
    case.refused(CorruptCheckpoint, name, str(value))


def test_deepseek_sizes_that_do_not_fit_the_heads(edited):
    case = edited("deepseek_v3")
    case.config["num_attention_heads"] = 2
    case.refused(TensorShapeMismatch, "2 heads", "kv_b_proj")


def test_deepseek_sizes_come_from_the_shapes(edited):
    case = edited("deepseek_v3")
    for key in ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"):
        del case.config[key]
    mixer = case.build().layers[0].token_mixer
    assert (mixer.kv_lora_rank, mixer.q_lora_rank, mixer.v_head_dim) == (16, 20, 10)
    assert (mixer.qk_nope_head_dim, mixer.qk_rope_head_dim) == (12, 8)
    assert case.facts.warnings == []


def test_dense_and_sparse_layers_agree_with_the_config(edited):
    case = edited("deepseek_v3")
    assert [layer.channel_mixer.kind for layer in case.build().layers] == ["mlp", "moe", "moe"]
    case.config["first_k_dense_replace"] = 0
    case.refused(TensorShapeMismatch, "layer 0 experts", "first_k_dense_replace", "a dense MLP")


def test_quantised_tensors_are_refused_by_name(edited):
    case = edited("deepseek_v3")
    name = "model.layers.1.self_attn.o_proj.weight"
    case.tensors[name] = TensorInfo("F8_E4M3", case.tensors[name].shape)
    case.refused(UnsupportedFormat, name, "F8_E4M3")


# --- unknown kinds -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama", "mixtral", "gemma2", "deepseek_v3"])
def test_unknown_rope_type_is_named(edited, name):
    case = edited(name)
    case.config["rope_parameters"] = {"rope_type": "spiral", "rope_theta": 1e4}
    case.refused(UnsupportedArchitecture, "'spiral'", "longrope")
    case.config = old_naming(case.config)
    case.refused(UnsupportedArchitecture, "'spiral'")


@pytest.mark.parametrize(("name", "key"), [("llama", "hidden_act"), ("gemma2", "hidden_activation")])
def test_unknown_activation_is_named(edited, name, key):
    case = edited(name)
    case.config[key] = "snake"
    case.refused(UnsupportedArchitecture, key, "'snake'")


@pytest.mark.parametrize(
    ("key", "value"), [("topk_method", "lottery"), ("scoring_func", "softmax"), ("topk_method", "greedy")]
)
def test_unknown_routing_is_named(edited, key, value):
    case = edited("deepseek_v3")
    case.config[key] = value
    case.refused(UnsupportedArchitecture, key, value)


def test_encoders_are_refused(edited):
    case = edited("gemma2")
    case.config["use_bidirectional_attention"] = True
    case.refused(UnsupportedArchitecture, "use_bidirectional_attention")


@pytest.mark.parametrize(
    ("name", "change", "parts"),
    [
        ("llama", {"rms_norm_eps": -1.0}, ("rms_norm_eps",)),
        ("llama", {"rope_parameters": {"rope_theta": 0.0}}, ("rope_theta",)),
        ("llama", {"rope_parameters": [1]}, ("rope_parameters",)),
        ("llama", {"rope_parameters": LLAMA3 | {"high_freq_factor": 0.5}}, ("high_freq_factor",)),
        ("llama", {"rope_parameters": {"rope_type": "linear"}}, ("factor",)),
        ("llama", {"num_attention_heads": True}, ("num_attention_heads",)),
        ("llama", {"num_hidden_layers": 1 << 40}, ("num_hidden_layers",)),
        ("mistral", {"sliding_window": -5}, ("sliding_window",)),
        ("phi3", {"rope_parameters": longrope(3, 64)}, ("short_factor", "4")),
        ("gemma2", {"layer_types": ["full_attention"]}, ("layer_types", "2 layers")),
        ("mixtral", {"num_experts_per_tok": 5}, ("num_experts_per_tok", "4 experts")),
        ("deepseek_v3", {"n_group": 3}, ("groups",)),
        ("deepseek_v3", {"n_group": 4, "topk_group": 1, "num_experts_per_tok": 3}, ("num_experts_per_tok",)),
        ("deepseek_v3", {"n_group": 8, "topk_group": 8}, ("8 groups",)),
    ],
)
def test_values_out_of_range_are_refused(edited, name, change, parts):
    case = edited(name)
    case.config |= change
    case.refused(CorruptCheckpoint, *parts)


def test_one_rope_for_each_layer_type_is_refused_where_the_family_has_one(edited):
    case = edited("llama")
    kinds = {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}
    case.config["rope_parameters"] = kinds
    case.refused(CorruptCheckpoint, "full_attention, sliding_attention")


# --- defaults ----------------------------------------------------------------------------------


def test_defaults_are_facts_of_low_confidence(edited):
    case = edited("llama")
    for key in ("rms_norm_eps", "max_position_embeddings", "rope_parameters", "hidden_act"):
        del case.config[key]
    spec = case.build()
    assert spec.max_position_embeddings == 4096
    for name in ("norm.eps", "max_position_embeddings", "rope.theta", "activation"):
        assert case.fact(name).confidence is Confidence.LOW


@pytest.mark.parametrize("written", [None, False, True])
def test_without_a_head_the_embedding_is_it_unless_config_denies_it(edited, written):
    case = edited("llama")
    del case.tensors["lm_head.weight"]
    case.config["tie_word_embeddings"] = written
    if written is False:
        case.refused(MissingTensor, "tie_word_embeddings false", "lm_head.weight")
        case.facts = Facts({"tie_word_embeddings": True})
    assert case.build().tie_word_embeddings is True


def test_a_head_beside_the_tie_flag_is_left_out(edited):
    case = edited("llama")
    case.config["tie_word_embeddings"] = True
    assert "lm_head.weight" not in case.build().parameters
    assert case.facts.warnings == []


def test_the_window_of_mistral_is_off_when_null_and_4096_when_absent(edited):
    case = edited("mistral")
    case.config["sliding_window"] = None
    assert case.build().layers[0].token_mixer.sliding_window is None
    del case.config["sliding_window"]
    assert case.build().layers[0].token_mixer.sliding_window == 4096
    assert case.fact("attention.sliding_window").confidence is Confidence.LOW


@pytest.mark.parametrize("kind", ["su", "yarn", "longrope"])
def test_early_names_of_longrope(edited, kind):
    case = edited("phi3")
    case.config = old_naming(case.config)
    case.config["rope_scaling"]["type"] = kind
    scaling = case.build().layers[0].token_mixer.rope.scaling
    assert (scaling.kind, scaling.factor, scaling.original_max_position_embeddings) == ("longrope", 4.0, 64)


def test_experts_stacked_in_out_are_transposed(edited):
    case = edited("mixtral")
    case.tensors = {name: info for name, info in case.tensors.items() if ".experts." not in name}
    for number in range(2):
        base = f"model.layers.{number}.block_sparse_moe.experts."
        for name, shape in (("gate_proj", (4, 32, 48)), ("up_proj", (4, 32, 48)), ("down_proj", (4, 48, 32))):
            case.tensors[f"{base}{name}.weight"] = TensorInfo("F32", shape)
    mixer = case.build().layers[0].channel_mixer
    assert (mixer.num_experts, mixer.intermediate_size) == (4, 48)
    assert case.facts.warnings == []


def test_clean_checkpoints_give_no_warnings(edited, checkpoints):
    for name in checkpoints:
        case = edited(name)
        case.build()
        assert case.facts.warnings == [], name
