"""The demo model: training and inference agree, training is reproducible, the shipped copy knows its text."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from inference.demo.corpus import as_prose, encode_documents, load_documents, train_tokenizer
from inference.demo.network import DemoConfig, DemoNetwork
from inference.demo.paths import PREBUILT_DIRECTORY
from inference.demo.train import create_demo, orthogonalised
from tests.inference.modelling.harness import SequenceRunner, assert_matches_oracle, load_directory

TINY = DemoConfig(vocab_size=300, hidden_size=40, mamba_heads=5, mamba_head_dim=16, layers=("mamba2", "mla", "gqa"))


def test_inference_matches_the_trained_network(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = DemoNetwork(TINY).eval()
    save_file(network.state_dict(), tmp_path / "model.safetensors")
    loaded = load_directory(tmp_path, dict(TINY.to_json()), "oxidizr")

    def oracle(token_ids: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            return network(token_ids[None])[0]

    # Float32 on both sides; the scans sum in different orders.
    assert_matches_oracle(loaded, oracle, tolerance=3e-4)


def test_same_seed_gives_the_same_weights(tmp_path: Path) -> None:
    config = replace(TINY, vocab_size=400)
    for name in ("a", "b"):
        create_demo(tmp_path / name, steps=2, config=config)
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("a", "b"))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[key], second[key]) for key in first)


def test_reports_count_down(tmp_path: Path) -> None:
    reports = []
    result = create_demo(tmp_path / "demo", steps=3, config=replace(TINY, vocab_size=400), on_report=reports.append)
    assert [report.step for report in reports] == [1, 2, 3]
    assert reports[-1].seconds_left == 0.0
    assert result.num_parameters == sum(p.numel() for p in DemoNetwork(replace(TINY, vocab_size=400)).parameters())


def test_orthogonalised_has_singular_values_near_one() -> None:
    torch.manual_seed(0)
    for shape in ((8, 20), (20, 8)):
        values = torch.linalg.svdvals(orthogonalised(torch.randn(shape)))
        assert values.min() > 0.5
        assert values.max() < 1.3


def test_prose_keeps_sentences_only() -> None:
    sentence = "This is a wrapped\nsentence of words::"
    page = f"Title\n*****\n\n   x ::= y\n\n{sentence}\n\n   >>> code()\n\nAnd one more sentence."
    assert as_prose(page) == "This is a wrapped sentence of words:\nAnd one more sentence."


def test_prebuilt_model_predicts_its_own_text() -> None:
    """The shipped weights know the corpus: far below the 10 bits of a uniform guess over 1,024 tokens."""
    network = load_directory(PREBUILT_DIRECTORY, model_type="oxidizr")
    documents = load_documents(7)[10:12]
    tokenizer = Tokenizer.from_file(str(PREBUILT_DIRECTORY / "tokenizer.json"))
    tokens = encode_documents(tokenizer, documents)[:200]
    logits = SequenceRunner(network, max_len=256).run("text", tokens, 64)
    loss = torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(tokens[1:]))
    assert loss < 3.0


def test_tokenizer_round_trips_its_text() -> None:
    documents = load_documents(7)[:5]
    tokenizer = train_tokenizer(documents, 400)
    text = documents[0].text
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
