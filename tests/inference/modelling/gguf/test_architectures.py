"""Every architecture: a random checkpoint written as GGUF computes the logits that it had in HuggingFace's form."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFReader, quants
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, Gemma2Config, Gemma3TextConfig, Qwen2MoeConfig, Qwen3MoeConfig

from inference.errors import CorruptCheckpoint, TensorShapeMismatch, UnsupportedArchitecture, UnsupportedFormat
from inference.modelling.families.config import CheckpointConfig, CheckpointView, Facts, TensorInfo, TensorTable
from inference.modelling.families.registry import family_builder
from inference.modelling.gguf.architectures import read_checkpoint
from inference.modelling.network import HybridForCausalLM
from inference.modelling.weights.files import TensorFiles
from inference.modelling.weights.loader import load_network, load_prediction_head
from models_registry.detection.inspection import inspect_checkpoint
from tests.inference.modelling.gguf.converter import convert
from tests.inference.modelling.gguf.linear_converter import convert_linear
from tests.inference.modelling.gguf.writer import TYPES, Tensor, value, write_gguf
from tests.inference.modelling.harness import SequenceRunner, assert_matches_oracle, load_directory
from tests.inference.modelling.heads import write_checkpoint
from tests.inference.modelling.huggingface import make_checkpoint
from tests.inference.modelling.test_network_attention import BASE, GEMMA3, MOE
from tests.inference.modelling.test_network_attention import CASES as ATTENTION
from tests.inference.modelling.test_network_dense import CASES as DENSE
from tests.inference.modelling.test_network_linear import CASES as LINEAR
from tests.inference.modelling.test_network_linear import DELTA, EXPERTS
from tests.inference.modelling.test_network_recurrent import CASES as RECURRENT
from tests.inference.modelling.test_network_recurrent import make_model, oracle_of

ATTENTION_CASES = (
    "llama", "llama-mha-bias", "llama-mqa-tied-head-dim", "llama-rope-llama3", "llama-rope-linear", "llama-rope-yarn",
    "mistral-no-window", "qwen2", "qwen3", "mixtral", "phi3", "phi3-partial-window", "phi3-longrope-short",
    "deepseek_v2", "deepseek_v2-q-lora-groups-yarn", "deepseek_v3",
)  # fmt: skip
OWN_CASES = {
    "qwen2_moe": Qwen2MoeConfig(**BASE | MOE | {"num_experts": 6, "shared_expert_intermediate_size": 20}),
    "qwen3_moe": Qwen3MoeConfig(**BASE | MOE | {"num_experts": 8, "head_dim": 16, "norm_topk_prob": True}),
    "gemma3_text": Gemma3TextConfig(
        **BASE | GEMMA3 | {"num_hidden_layers": 6, "layer_types": None, "tie_word_embeddings": True}
    ),
    "gemma3_text-stretched": Gemma3TextConfig(
        **BASE
        | GEMMA3
        | {
            "num_hidden_layers": 6,
            "layer_types": None,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
            },
        }
    ),
    "gemma2": Gemma2Config(
        **BASE | {"head_dim": 16, "sliding_window": 6, "tie_word_embeddings": True, "query_pre_attn_scalar": 16}
    ),
}
LATENT_CASES = {
    "glm4_moe_lite": {"mlp_layer_types": ["dense", "sparse", "sparse"]},
    "youtu": {},
}
CONFIGS = (
    {name: ATTENTION[name] for name in ATTENTION_CASES}
    | OWN_CASES
    | {
        name: AutoConfig.for_model(DENSE[name][0], **(BASE | DENSE[name][1] | changes))
        for name, changes in LATENT_CASES.items()
    }
)
"""What a GGUF file can state: the size of Gemma's scale and which layers of Qwen are dense are not in it."""

RECURRENT_CASES = {
    "mamba": {},
    "falcon_mamba": {"mixer_rms_eps": 1e-5},
    "mamba2": {},
    "bamba": {},
    "granitemoehybrid-moe": {},
    "granitemoehybrid-dense-rope": {},
    "nemotron_h-dense": {},
    "nemotron_h-moe": {"use_bias": False},
    "nemotron_h-latent": {},
    "jamba": {},
}
"""With the constants that a file can't state, as llama.cpp has them."""


LINEAR_CASES = {
    "lfm2": (LINEAR["lfm2"], {}),
    "lfm2-biases-kernel-untied": (LINEAR["lfm2-biases-kernel-untied"], {}),
    "lfm2_moe": (LINEAR["lfm2_moe"], {"routed_scaling_factor": 1.0}),
    "lfm2_moe-without-bias": (LINEAR["lfm2_moe"], {"routed_scaling_factor": 1.0, "use_expert_bias": False}),
    "qwen3_next": (("Qwen3Next", DELTA | EXPERTS), {}),
    "qwen3_next-all-rotated-one-value-head": (
        ("Qwen3Next", DELTA | EXPERTS),
        {
            "linear_num_value_heads": 2,
            "rope_parameters": {"rope_type": "default", "rope_theta": 5e5, "partial_rotary_factor": 1.0},
        },
    ),
    "qwen3_5": (LINEAR["qwen3_5"], {}),
    "qwen3_5-six-value-heads": (LINEAR["qwen3_5"], {"linear_num_value_heads": 6}),
    "qwen3_5-one-value-head": (LINEAR["qwen3_5"], {"linear_num_value_heads": 2}),
    "qwen3_5_moe": (LINEAR["qwen3_5_moe"], {}),
}
"""Scores of experts are always divided by their sum, and no file states a factor."""


def load_gguf(*paths, dtype: torch.dtype = torch.float32) -> HybridForCausalLM:
    """As the worker does: config and names to a spec, spec to a network."""
    found = read_checkpoint(paths)
    infos = {name: TensorInfo(tensor.type_name, tensor.shape) for name, tensor in found.tensors.items()}
    view = CheckpointView(CheckpointConfig(found.config), TensorTable(infos), Facts())
    spec = family_builder(found.config["model_type"])(view)
    return load_network(spec, paths, dtype=dtype)


@pytest.mark.parametrize("name", CONFIGS)
def test_attention_gives_the_same_logits(name, tmp_path):
    directory, oracle = make_checkpoint(CONFIGS[name], tmp_path)
    assert_matches_oracle(load_gguf(convert(directory, tmp_path / "model.gguf")), oracle)


@pytest.mark.parametrize("name", RECURRENT_CASES)
def test_recurrence_gives_the_same_logits(name, tmp_path):
    family, values = RECURRENT[name]
    model = make_model(family, values | RECURRENT_CASES[name])
    model.save_pretrained(tmp_path)
    assert_matches_oracle(load_gguf(convert(tmp_path, tmp_path / "model.gguf")), oracle_of(model))


def linear_model(name: str, directory) -> torch.nn.Module:
    (family, values), changes = LINEAR_CASES[name]
    model = make_model(family, values | changes)
    with torch.no_grad():
        for key, parameter in model.named_buffers():
            if key.endswith("expert_bias"):
                parameter.uniform_(-0.3, 0.3)
    model.save_pretrained(directory)
    return model


@pytest.mark.parametrize("name", LINEAR_CASES)
def test_linear_layers_give_the_same_logits(name, tmp_path):
    model = linear_model(name, tmp_path)
    assert_matches_oracle(load_gguf(convert_linear(tmp_path, tmp_path / "model.gguf")), oracle_of(model))


@pytest.mark.parametrize(
    "changes",
    [{}, {"mamba_rms_norm": True, "mamba_norm_before_gate": False, "head_dim": 16}, {"ssm_multipliers": None}],
    ids=["published", "norm-behind-the-gate", "fewer-factors"],
)
def test_falcon_h1_gives_the_same_logits(changes, tmp_path):
    """Its factors are in the file's weights."""
    family, values = LINEAR["falcon_h1"]
    model = make_model(family, values | changes)
    model.save_pretrained(tmp_path)
    assert_matches_oracle(load_gguf(convert(tmp_path, tmp_path / "model.gguf")), oracle_of(model))


def test_the_first_files_of_qwen3_next_hold_heads_one_by_one(tmp_path):
    model = linear_model("qwen3_next", tmp_path)
    assert_matches_oracle(load_gguf(convert_linear(tmp_path, tmp_path / "m.gguf", in_heads=True)), oracle_of(model))


@pytest.mark.parametrize("name", ["qwen3_next", "qwen3_5_moe"])
def test_gates_and_ups_of_experts_may_be_one_tensor(name, tmp_path):
    model = linear_model(name, tmp_path)
    assert_matches_oracle(load_gguf(convert_linear(tmp_path, tmp_path / "m.gguf", fused=True)), oracle_of(model))


WIDE = {
    "hidden_size": 64, "intermediate_size": 64, "head_dim": 32, "linear_key_head_dim": 32, "linear_value_head_dim": 32,
    "moe_intermediate_size": 64, "shared_expert_intermediate_size": 64,
}  # fmt: skip
"""Sizes of whole blocks."""
IN_CODES = {
    "qwen3_5": ({"linear_num_value_heads": 6}, {}, "linear_attn.in_proj_qkv", "linear_attn.out_proj"),
    "qwen3_5_moe": ({}, {"fused": True}, "linear_attn.in_proj_b", "mlp.experts.5.up_proj"),
    "qwen3_next": ({}, {}, "linear_attn.in_proj_z", "linear_attn.in_proj_a"),
    "qwen3_next-in-heads": ({}, {"in_heads": True}, "linear_attn.in_proj_qkvz", "linear_attn.out_proj"),
    "lfm2_moe": ({}, {}, "conv.in_proj", "conv.out_proj"),
}


@pytest.mark.parametrize("name", IN_CODES)
def test_linear_layers_are_multiplied_in_the_files_codes(name, tmp_path):
    changes, how, *kept = IN_CODES[name]
    family, values = LINEAR_CASES[name.partition("-")[0]][0]
    sizes = WIDE if "qwen" in name else {key: WIDE[key] for key in ("hidden_size", "moe_intermediate_size")}
    make_model(family, values | sizes | changes).save_pretrained(tmp_path)
    path = convert_linear(tmp_path, tmp_path / "model.gguf", "Q8_0", **how)
    spec = inspect_checkpoint(path).spec
    assert {f"model.layers.0.{module}.weight" for module in kept} <= {item.name for item in spec.encoded}
    networks = [load_network(spec, [path], dtype=torch.float32, quant=quant, pack=True) for quant in ("auto", "none")]
    coded, plain = (SequenceRunner(network).step([("a", list(range(40)))])["a"] for network in networks)
    assert (coded - plain).norm() < 1e-3 * plain.norm()  # activations are rounded to 16 bits


@pytest.mark.parametrize("name", ["qwen3_5", "qwen3_next"])
def test_layers_that_draft_have_the_names_of_the_checkpoint(name, tmp_path):
    model = linear_model(name, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    layer = "model.layers.3."
    drafts = {name.replace(layer, "mtp.layers.0."): given + 1 for name, given in tensors.items() if layer in name}
    for name in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"):
        drafts[f"mtp.{name}.weight"] = torch.rand(32)
    drafts["mtp.fc.weight"] = torch.rand(32, 64)
    save_file(tensors | drafts, tmp_path / "model.safetensors")
    path = convert_linear(tmp_path, tmp_path / "model.gguf", drafts=1)
    assert drafts.keys() < read_checkpoint([path]).tensors.keys()
    with TensorFiles([path], [(name,) for name in drafts], dequantised=torch.float32) as files:
        for name, given in drafts.items():
            files.move()
            torch.testing.assert_close(files.read(name), given)
    assert_matches_oracle(load_gguf(path), oracle_of(model))
    heads = []
    for file, spec in (
        (path, load_gguf(path).spec),
        (tmp_path / "model.safetensors", load_directory(tmp_path).spec),
    ):
        assert spec.prediction_head is not None
        heads.append(load_prediction_head(spec.prediction_head, [file], dtype=torch.float32).state_dict())
    assert heads[0].keys() == heads[1].keys()
    for name, given in heads[0].items():
        torch.testing.assert_close(heads[1][name], given)


def test_a_head_knows_how_its_codes_are_decoded(tmp_path):
    write_checkpoint("qwen3_5", tmp_path)
    path = convert_linear(tmp_path, tmp_path / "model.gguf", "Q8_0", drafts=1)
    spec = inspect_checkpoint(path).spec
    head = spec.prediction_head
    assert head is not None
    read = {name for source in head.parameters.values() for name in source.tensor_names()}
    assert {item.name for item in head.encoded} == read & {item.name for item in spec.encoded} != set()
    load_prediction_head(head, [path], dtype=torch.float32, quant="auto", pack=True)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1", "BF16"])
@pytest.mark.parametrize("name", ["llama", "qwen2_moe"])
def test_codes_give_the_logits_of_their_values(name, kind, tmp_path):
    directory, _ = make_checkpoint(CONFIGS[name], tmp_path)
    path = convert(directory, tmp_path / "model.gguf", kind)
    tensors = load_file(directory / "model.safetensors")
    number = GGMLQuantizationType[kind]
    for key, given in tensors.items():
        if given.dim() == 2 and not given.shape[1] % quants.GGML_QUANT_SIZES[number][0] and given.shape[0] > 1:
            tensors[key] = torch.from_numpy(quants.dequantize(quants.quantize(given.numpy(), number), number))
    save_file(tensors, directory / "model.safetensors")
    tokens = torch.arange(40) % 90
    expected = SequenceRunner(load_directory(directory)).step([("a", tokens.tolist())])["a"]
    found = SequenceRunner(load_gguf(path)).step([("a", tokens.tolist())])["a"]
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)  # the same values, perhaps in another order


def test_a_split_file_is_the_same(tmp_path):
    directory, oracle = make_checkpoint(CONFIGS["llama"], tmp_path)
    found = GGUFReader(convert(directory, tmp_path / "model.gguf"))
    kept = [(key.name, key) for key in found.fields.values() if not key.name.startswith("GGUF.")]
    names = [tensor.name for tensor in found.tensors]
    paths = []
    for part in range(2):
        own = names[part::2]
        tensors = [
            Tensor(item.name, tuple(reversed([int(size) for size in item.shape])), item.data.tobytes())
            for item in found.tensors
            if item.name in own
        ]
        keys = {"split.no": value(part, "u16"), "split.count": value(2, "u16")}
        if part == 0:
            keys |= {name: packed(key) for name, key in kept}
        paths.append(tmp_path / f"model-{part + 1:05}-of-00002.gguf")
        write_gguf(paths[-1], keys, tensors)
    assert_matches_oracle(load_gguf(*paths), oracle)


def packed(key) -> bytes:
    """Type and value of a key that the package has read."""
    given = key.contents()
    if isinstance(given, list):
        return value(given)
    kind = "string" if isinstance(given, str) else {4: "u32", 5: "i32", 6: "f32", 7: "bool"}[int(key.types[0])]
    return value(given, kind)


@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
def test_experts_of_the_first_mixtral_files_are_single(kind, tmp_path):
    directory, oracle = make_checkpoint(CONFIGS["mixtral"], tmp_path)
    convert(directory, tmp_path / "model.gguf", kind)
    path = without_stacks(tmp_path / "model.gguf", tmp_path / "single.gguf")
    assert "blk.1.ffn_down.3.weight" in read_checkpoint([path]).parts.tensors
    if kind == "F32":
        return assert_matches_oracle(load_gguf(path), oracle)
    found, expected = load_gguf(path).state_dict(), load_gguf(tmp_path / "model.gguf").state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], given) for name, given in expected.items())


def without_stacks(path, out, count: int | None = None):
    """The same file with each expert's matrices as tensors of their own; with another number of experts stated."""
    found = GGUFReader(path)
    keys = {key.name: packed(key) for key in found.fields.values() if not key.name.startswith("GGUF.")}
    if count is not None:
        keys["llama.expert_count"] = value(count)
    tensors = []
    for item in found.tensors:
        shape = tuple(reversed([int(size) for size in item.shape]))
        if "_exps" not in item.name:
            tensors.append(Tensor(item.name, shape, item.data.tobytes(), int(item.tensor_type)))
            continue
        for expert, data in enumerate(item.data):
            name = item.name.replace("_exps", f".{expert}")
            tensors.append(Tensor(name, shape[1:], data.tobytes(), int(item.tensor_type)))
    write_gguf(out, keys, tensors)
    return out


def test_more_single_experts_than_stated_are_refused(tmp_path):
    directory, _ = make_checkpoint(CONFIGS["mixtral"], tmp_path)
    path = without_stacks(convert(directory, tmp_path / "model.gguf"), tmp_path / "single.gguf", count=2)
    with pytest.raises(UnsupportedArchitecture, match=r"have no place .* blk\.0\.ffn_down\.2\.weight"):
        read_checkpoint([path])


@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe", "granitemoehybrid"])
def test_nvfp4_is_its_values_times_the_scale_beside_it(name, tmp_path):
    sizes = {"hidden_size": 64, "intermediate_size": 64, "moe_intermediate_size": 64, "shared_intermediate_size": 64}
    if name == "granitemoehybrid":
        family, values = RECURRENT["granitemoehybrid-moe"]
        make_model(family, values | sizes | {"mamba_n_heads": 16}).save_pretrained(tmp_path)
        directory = tmp_path
    else:
        config = CONFIGS[name].to_dict() | {key: 64 for key in sizes if key in CONFIGS[name].to_dict()}
        directory, _ = make_checkpoint(type(CONFIGS[name]).from_dict(config), tmp_path)
    path = convert(directory, tmp_path / "model.gguf")
    coded, plain = in_nvfp4(path, tmp_path)
    found, expected = load_gguf(coded).state_dict(), load_gguf(plain).state_dict()
    assert found.keys() == expected.keys()
    for key, given in expected.items():
        assert torch.equal(found[key], given), key


def in_nvfp4(path, directory):
    """The same file with random NVFP4 weights of several scales, and one with their values."""
    found = GGUFReader(path)
    keys = {key.name: packed(key) for key in found.fields.values() if not key.name.startswith("GGUF.")}
    random = np.random.default_rng(7)
    coded, plain = [], []
    for item in found.tensors:
        shape = tuple(reversed([int(size) for size in item.shape]))
        if len(shape) == 1 or shape[-1] % 64 or not item.name.endswith(".weight"):
            coded.append(Tensor(item.name, shape, item.data.tobytes()))
            plain.append(coded[-1])
            continue
        raw = random.integers(0, 256, (*shape[:-1], shape[-1] // 64, 36), dtype=np.uint8)
        raw[..., :4] = random.integers(40, 60, raw[..., :4].shape)
        raw = raw.reshape(*shape[:-1], -1)
        scales = random.uniform(0.01, 0.1, shape[0] if len(shape) == 3 else 1).astype(np.float32)
        values = quants.dequantize(raw, GGMLQuantizationType.NVFP4).astype(np.float32)
        values *= scales.reshape(-1, *[1] * (len(shape) - 1))
        base = item.name.removesuffix("weight")
        coded.append(Tensor(item.name, shape, raw.tobytes(), TYPES["NVFP4"][0]))
        coded.append(Tensor(f"{base}scale", scales.shape, scales.tobytes()))
        coded.append(Tensor(f"{base}input_scale", scales.shape, scales.tobytes()))
        plain.append(Tensor(item.name, shape, values.tobytes()))
    for name, tensors in (("coded", coded), ("plain", plain)):
        write_gguf(directory / f"{name}.gguf", keys, tensors)
    return directory / "coded.gguf", directory / "plain.gguf"


def minimal(tmp_path, keys: dict, rows: int = 4):
    path = tmp_path / "m.gguf"
    tensor = Tensor("token_embd.weight", (rows, 2), bytes(8 * rows))
    write_gguf(path, {"general.architecture": "llama", "llama.block_count": 1} | keys, [tensor])
    return path


@pytest.mark.parametrize(
    ("keys", "error", "message"),
    [
        (
            {"general.architecture": "rwkv7"},
            UnsupportedArchitecture,
            "'rwkv7', which is not read; read are llama, qwen2",
        ),
        ({"general.architecture": ""}, UnsupportedArchitecture, "no general.architecture"),
        ({"general.type": "adapter"}, UnsupportedFormat, "holds no model, but 'adapter'"),
        ({"llama.block_count": 0}, UnsupportedArchitecture, "states 0 layers"),
        ({"llama.block_count": "x"}, CorruptCheckpoint, "llama.block_count is 'x'; it must be a whole number"),
        (
            {"general.architecture": "qwen35", "qwen35.block_count": 2, "qwen35.nextn_predict_layers": 2},
            UnsupportedArchitecture,
            "states 2 layers, of which 2 only draft tokens",
        ),
        ({"tokenizer.ggml.tokens": ["a", "b", "c"]}, TensorShapeMismatch, "has 3 tokens .* has 4 rows"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(keys, error, message, tmp_path):
    with pytest.raises(error, match=message):
        read_checkpoint([minimal(tmp_path, keys)])


def test_a_tensor_that_the_architecture_lacks_is_refused(tmp_path):
    path = tmp_path / "m.gguf"
    keys = {"general.architecture": "llama", "llama.block_count": 1}
    write_gguf(path, keys, [Tensor("blk.0.ssm_a", (2,), bytes(8)), Tensor("blk.1.attn_q.weight", (2, 2), bytes(16))])
    with pytest.raises(UnsupportedArchitecture, match=r"2 tensors have no place .* blk.0.ssm_a, blk.1.attn_q.weight"):
        read_checkpoint([path])
