"""Networks whose matrices were quantised at load: near to the float32 ones, and the same in any batch."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest
import torch
import transformers

from inference.demo.paths import PREBUILT_DIRECTORY
from inference.errors import InvalidRequest
from inference.llm.llm import LLM
from inference.llm.options import LLMOptions
from inference.modelling.backends.backend import NativeBackend, pack_weights
from inference.modelling.backends.native import packing
from inference.modelling.families.registry import family_builder
from inference.modelling.layers.linear import Linear, network_bytes
from inference.modelling.network import HybridForCausalLM
from inference.modelling.quantisation import Quant, is_quantisable, quantised_bytes, quantised_kinds, weights_bytes
from inference.modelling.weights.loader import load_network
from inference.values.sampling_params import SamplingParams
from models_registry.detection.inspection import inspect_checkpoint
from tests.inference.modelling import huggingface
from tests.inference.modelling import test_network_dense as dense_families
from tests.inference.modelling import test_network_large as large_families
from tests.inference.modelling import test_network_linear as linear_families
from tests.inference.modelling.harness import SequenceRunner, read_view
from tests.inference.modelling.test_network_dense import tiny_config
from tests.inference.modelling.test_network_recurrent import make_model

pytestmark = pytest.mark.usefixtures("two_threads")

PROMPT = [5, 9, 2, 17, 30, 8, 8, 1, 44, 23, 11, 3]


def load(directory: Path, quant: Quant, dtype: torch.dtype = torch.float32, *, pack: bool = False) -> HybridForCausalLM:
    view = read_view(directory)
    spec = family_builder(view.config.string("model_type"))(view)
    return load_network(spec, sorted(directory.glob("*.safetensors")), dtype=dtype, quant=quant, pack=pack)


def logits(network: HybridForCausalLM, tokens: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return SequenceRunner(network).step([("a", tokens)])["a"]


def similarity(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Median cosine of the rows' logits, centred: a row whose experts change may go astray."""
    found, expected = (part - part.mean(-1, keepdim=True) for part in (found.double(), expected.double()))
    return float(torch.cosine_similarity(found, expected, dim=-1).median())


SIZES = {"vocab_size": 96, "hidden_size": 64, "num_hidden_layers": 2, "tie_word_embeddings": True}
ATTENTION = {"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96}
MAMBA = {
    "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_n_groups": 1, "mamba_d_conv": 4,
    "mamba_expand": 2, "mamba_chunk_size": 16,
}  # fmt: skip
CONFIGS = {
    "llama": lambda: transformers.LlamaConfig(**SIZES | ATTENTION),
    "mamba2": lambda: transformers.Mamba2Config(
        **SIZES | {"num_heads": 8, "head_dim": 16, "state_size": 16, "n_groups": 1, "chunk_size": 16}
    ),
    "granitemoehybrid": lambda: transformers.GraniteMoeHybridConfig(
        **SIZES | ATTENTION | MAMBA | {
            "intermediate_size": 48, "shared_intermediate_size": 64, "layer_types": ["mamba", "attention"],
            "num_local_experts": 4, "num_experts_per_tok": 2,
        }
    ),
    "deepseek_v2": lambda: transformers.DeepseekV2Config(
        **SIZES | ATTENTION | {
            "q_lora_rank": None, "kv_lora_rank": 32, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 10,
            "num_key_value_heads": 4, "moe_intermediate_size": 40, "n_routed_experts": 4, "num_experts_per_tok": 2,
            "n_shared_experts": 1, "first_k_dense_replace": 1, "tie_word_embeddings": False,
        }
    ),
}  # fmt: skip
RECURRENT = ("zamba", "rwkv", "lfm3", "qwen4_exp", "zaya", "inkling", "inkling2", "glm5_next")
LARGE = (
    "axk1", "axk2", "glm_moe_dsa", "hy_v4", "deepseek_v4", "jetmoe", "diffllama", "xglm", "bitnet", "step3p5",
    "dots3_note_text", "mistral_large4_text", "molmo2_text", "muse_glimmer_text",
    "muse_spark_text-all-experts-cold-gates-biases",
)  # fmt: skip
LEAST_SIMILARITY = {"int8": 0.97, "int4": 0.8}
"""int8: every product errs by about 1 % of its norm (weights 0.7 %, activations 0.6 %), int4: by 8 %, which two layers
of random weights amplify; most in the hybrid, whose routers see it and choose other experts for some rows."""


@pytest.fixture(scope="module", params=CONFIGS)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory, _ = huggingface.make_checkpoint(CONFIGS[request.param](), tmp_path_factory.mktemp(request.param))
    return directory


@pytest.mark.parametrize("quant", ["int8", "int4"])
def test_logits_stay_near_float32(checkpoint: Path, quant: Quant) -> None:
    exact, found = (logits(load(checkpoint, kind), PROMPT) for kind in ("none", quant))
    assert similarity(found, exact) > LEAST_SIMILARITY[quant]
    assert similarity(found, exact) < 1 - 1e-7, "nothing was quantised"


@pytest.mark.parametrize("quant", ["int8", "int4"])
@pytest.mark.parametrize("name", RECURRENT)
def test_logits_of_recurrent_families_stay_near_float32(name: str, quant: Quant, tmp_path: Path) -> None:
    family, values = linear_families.CASES[name]
    make_model(family, values | {"hidden_size": 64}).save_pretrained(tmp_path)
    exact, found = (logits(load(tmp_path, kind), PROMPT) for kind in ("none", quant))
    assert LEAST_SIMILARITY[quant] < similarity(found, exact) < 1 - 1e-7


@pytest.mark.parametrize("name", LARGE)
def test_logits_of_larger_families_stay_near_float32(name: str, tmp_path: Path) -> None:
    family, values = (large_families.CASES | dense_families.CASES)[name]
    width = {"d_model" if "d_model" in values else "hidden_size": 64}
    directory, _ = huggingface.make_checkpoint(tiny_config(family, values | width), tmp_path)
    exact, found = (logits(load(directory, kind), PROMPT) for kind in ("none", "int8"))
    assert LEAST_SIMILARITY["int8"] < similarity(found, exact) < 1 - 1e-7


@pytest.mark.parametrize("quant", ["int8", "int4"])
def test_matrices_shrink_as_planned(checkpoint: Path, quant: Quant) -> None:
    network = load(checkpoint, quant)
    spec = network.spec
    for name, shape in spec.parameter_shapes().items():
        path, _, leaf = name.rpartition(".")
        held = getattr(network.get_submodule(path), leaf)
        assert (held.numel() == 0) == is_quantisable(name, shape), name
    kept = {name for name, shape in spec.parameter_shapes().items() if not is_quantisable(name, shape)}
    assert all("norm" in name or "router" in name or len(spec.parameter_shapes()[name]) == 1 or "conv" in name
               or "_b_proj" in name for name in kept), kept  # fmt: skip
    planned = weights_bytes(spec, "float32", quant)
    # Blocks of 32 outputs are filled up: much for matrices as small as these, nothing for real ones.
    assert planned <= network_bytes(network) < 2 * planned


def test_int4_keeps_the_last_down_projection_in_int8(checkpoint: Path) -> None:
    network = load(checkpoint, "int4")
    kinds, spec = quantised_kinds(network.spec, "int4"), network.spec
    in_int8 = {name for name, kind in kinds.items() if kind == "int8" and name.startswith("layers.")}
    assert in_int8 == {
        name for name, shape in spec.parameter_shapes().items()
        if name.startswith(f"layers.{len(spec.layers) - 1}.") and ".down_proj" in name and len(shape) == 2
    }  # fmt: skip
    for name in in_int8:
        held = cast("Linear", network.get_submodule(name.removesuffix(".weight"))).packed_bytes
        assert held >= quantised_bytes(spec.parameter_shapes()[name], "int8")


def test_the_same_logits_alone_and_in_a_batch(checkpoint: Path) -> None:
    """Products of integers don't round, and everything else in float32 is what it is without quantisation."""
    check_alone_and_in_a_batch(load(checkpoint, "int8"), tolerance=1e-4)


ZAMBA = ("zamba", "zamba-four-heads-biases-untied")


@pytest.mark.parametrize("quant", ["int8", "int4"])
@pytest.mark.parametrize("hidden_size", [64, 128])
@pytest.mark.parametrize("name", ZAMBA)
def test_products_by_head_do_not_depend_on_other_rows(
    name: str, hidden_size: int, quant: Quant, tmp_path: Path
) -> None:
    """They stay in float32, and a last bit there may change a code of what is quantised behind them."""
    family, values = linear_families.CASES[name]
    make_model(family, values | {"hidden_size": hidden_size}).save_pretrained(tmp_path)
    check_alone_and_in_a_batch(load(tmp_path, quant), tolerance=0.0)


def check_alone_and_in_a_batch(network: HybridForCausalLM, *, tolerance: float) -> None:
    with torch.inference_mode():
        alone, together = SequenceRunner(network), SequenceRunner(network)
        first = alone.step([("a", PROMPT)])["a"]
        both = together.step([("b", PROMPT[3:9]), ("a", PROMPT), ("c", PROMPT[:5])])["a"]
        torch.testing.assert_close(both, first, rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(
            together.step([("a", [7]), ("b", [9]), ("c", [1])])["a"],
            alone.step([("a", [7])])["a"],
            rtol=tolerance,
            atol=tolerance,
        )


@pytest.mark.parametrize("quant", ["none", "int8", "int4"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_packed_as_they_are_read_are_the_same(
    checkpoint: Path, quant: Quant, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """bfloat16 too: float32 as stored is quantised as it is, and turned to bfloat16 only where it isn't."""
    monkeypatch.setattr(packing, "PIECE_BYTES", 1)  # a block at a time
    streamed = load(checkpoint, quant, dtype, pack=True)
    with monkeypatch.context() as patch:
        patch.setattr(NativeBackend, "row_packer", lambda *_, **__: None)
        whole = load(checkpoint, quant, dtype, pack=True)
    pack_weights(streamed)
    pack_weights(whole)
    assert network_bytes(streamed) == network_bytes(whole)
    assert torch.equal(logits(streamed, PROMPT), logits(whole, PROMPT))


def test_without_kernels_only_weights_are_quantised(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exact = logits(load(checkpoint, "none"), PROMPT)
    with monkeypatch.context() as patch:
        patch.setattr("inference.modelling.backends.native.library.is_available", lambda: False)
        found = logits(load(checkpoint, "int8"), PROMPT)
    assert similarity(found, exact) > LEAST_SIMILARITY["int8"]


def test_the_demo_model_writes_as_before() -> None:
    inspection = inspect_checkpoint(PREBUILT_DIRECTORY)
    files = [inspection.directory / name for name in inspection.weight_files]
    texts = {}
    for quant in ("none", "int8"):
        llm = LLM.load(inspection.spec, inspection.tokenizer, files, LLMOptions(quant=quant, max_num_seqs=2))
        try:
            events = llm.events("The statement", SamplingParams(temperature=0, max_tokens=24))
            texts[quant] = "".join(event.get("text", "") for event in events if event["type"] == "delta")
            memory = llm.memory_bytes()["weights"]
        finally:
            llm.close()
    assert memory < 0.4 * inspection.spec.num_parameters() * 4
    assert texts["int8"][:20] == texts["none"][:20]


def test_unknown_quant_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="quant is 'fp3'; it must be auto, none, int8, int4"):
        LLMOptions(quant="fp3")  # type: ignore[arg-type]
