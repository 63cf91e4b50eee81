"""The loss through the engine is the one that the comparison of quantised forms computes without it."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from inference.demo.paths import PREBUILT_DIRECTORY
from inference.errors import InvalidRequest
from inference.llm.llm import LLM
from inference.llm.options import LLMOptions
from inference.llm.quality import measure_quality
from inference.llm.text_loss import mean_loss
from models_registry.detection.inspection import inspect_checkpoint

TEXT = "The with statement is used to wrap the execution of a block with methods defined by a context manager. " * 8


@pytest.fixture(scope="module")
def llm():
    found = inspect_checkpoint(PREBUILT_DIRECTORY)
    options = LLMOptions(max_num_seqs=1, prefix_cache=False, dtype="float32", max_model_len=256)
    loaded = LLM.load(found.spec, found.tokenizer, found.weight_paths, options)
    yield loaded
    loaded.close()


@pytest.mark.parametrize("window", [16, 64])
def test_it_is_the_loss_of_the_network(llm: LLM, window: int) -> None:
    token_ids = llm.tokenizer.encode(TEXT)[:150]
    found = inspect_checkpoint(PREBUILT_DIRECTORY)
    (expected,) = measure_quality(
        found.spec, found.weight_paths, token_ids, ["none"], options=LLMOptions(dtype="float32"), window=window
    )
    shares: list[float] = []
    loss, count = mean_loss(llm, token_ids, window=window, progress=shares.append)
    assert count == expected.num_tokens
    assert loss == pytest.approx(math.log(expected.perplexity), rel=1e-4)  # float32, other shapes of products
    assert (shares == sorted(shares), shares[-1]) == (True, 1.0)


def test_a_window_of_one_token_predicts_nothing(llm: LLM) -> None:
    token_ids = llm.tokenizer.encode(TEXT)[:33]
    assert mean_loss(llm, token_ids, window=16)[1] == 30


def test_one_token_is_too_few(llm: LLM) -> None:
    with pytest.raises(InvalidRequest, match="the text has 1 tokens; at least 2 are needed"):
        mean_loss(llm, [5], window=16)


def test_it_is_the_loss_of_transformers(tmp_path: Path) -> None:
    """A Llama as HuggingFace's trainer saves it, against its own loss."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64,
    )  # fmt: skip
    reference = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for weight in reference.parameters():
            weight.mul_(3.0)  # so that predictions differ
    reference.save_pretrained(tmp_path / "checkpoint-7")
    found = inspect_checkpoint(tmp_path / "checkpoint-7")
    llm = LLM.load(found.spec, found.tokenizer, found.weight_paths, LLMOptions(max_num_seqs=1, dtype="float32"))
    token_ids = [int(value) for value in torch.randint(0, 96, (48,), generator=torch.Generator().manual_seed(1))]
    ids = torch.tensor([token_ids])
    with torch.no_grad():
        expected = float(reference(ids, labels=ids).loss)
    try:
        assert mean_loss(llm, token_ids, window=48)[0] == pytest.approx(expected, rel=1e-5)
    finally:
        llm.close()
