"""Which tokenizer is chosen, on what evidence, and which ids begin and end a text."""

from __future__ import annotations

import base64
from pathlib import Path

import jinja2.sandbox
import pytest
import splintr

from inference.errors import CorruptCheckpoint, InvalidRequest, UnsupportedFormat
from inference.modelling.families.config import Confidence
from inference.text.tokenisation.children.template import make_environment
from inference.values.output_format import tool_format_of, uses_tools
from inference.values.tokenizer_spec import VOCABULARIES
from models_registry.detection.vocabulary import BUILTIN, OXIDIZR_TEMPLATE
from tests.models_registry.detection.builders import choose, confidence, write_json


@pytest.mark.parametrize("name", VOCABULARIES)
def test_the_table_is_the_tokenizer_librarys(name: str) -> None:
    library, ours = splintr.Tokenizer.from_pretrained(name), BUILTIN[name]
    special = library.special_tokens()
    assert special[ours.eos[0]] == ours.eos[1]
    if ours.bos is not None:
        assert special[ours.bos[0]] == ours.bos[1]
    assert special["<|system|>"] == ours.agent_base
    assert special["<|assistant|>"] == ours.agent_base + 2
    assert special["<|im_end|>"] == ours.agent_base + 4
    assert special["<|stop|>"] == ours.agent_base + 40
    if name == "llama3":
        assert ours.turn_ends == (special["<|eom_id|>"], special["<|eot_id|>"])
    assert library.vocab_size == VOCABULARIES[name][1]


@pytest.mark.parametrize("name", VOCABULARIES)
@pytest.mark.parametrize("which", [0, 1])
def test_exact_totals_are_strong_evidence(tmp_path: Path, name: str, which: int) -> None:
    found, facts = choose(tmp_path, VOCABULARIES[name][which])
    assert (found.kind, found.name) == ("builtin", name)
    assert confidence(facts) in (Confidence.CERTAIN, Confidence.HIGH)
    assert not facts.warnings


@pytest.mark.parametrize("name", VOCABULARIES)
@pytest.mark.parametrize("padding", [8, 64, 128, 256])
def test_padded_totals_are_strong_evidence(tmp_path: Path, name: str, padding: int) -> None:
    for total in VOCABULARIES[name]:
        rows = -(-total // padding) * padding
        found, facts = choose(tmp_path, rows)
        assert (found.name, found.vocab_size) == (name, rows)
        assert confidence(facts) in (Confidence.CERTAIN, Confidence.HIGH)
        assert not facts.warnings


def test_nano_start_is_cl100k_with_a_warning(tmp_path: Path) -> None:
    found, facts = choose(tmp_path, 100_315)
    assert found.name == "cl100k_base"
    assert confidence(facts) is Confidence.MEDIUM
    assert any("guess" in warning for warning in facts.warnings)
    assert 100_257 in found.eos_token_ids
    # <|stop|> is 100317, beyond the last row
    assert max(found.eos_token_ids) < 100_315


@pytest.mark.parametrize(
    "rows", [64, 512, 32_000, 50_257, 99_999, 100_400, 102_400, 131_072, 151_936, 200_500, 256_000]
)
def test_nothing_is_guessed_outside_the_windows(tmp_path: Path, rows: int) -> None:
    found, facts = choose(tmp_path, rows)
    assert found.kind == "none"
    assert any("no tokenizer is known" in warning for warning in facts.warnings)
    assert found.chat_template is None


def test_the_published_size_of_deepseek(tmp_path: Path) -> None:
    assert choose(tmp_path, 129_280)[0].name == "deepseek_v3"


def test_order_of_trust(tmp_path: Path) -> None:
    assert choose(tmp_path, 128_354)[0].name == "llama3"
    write_json(tmp_path / "tokenizer.json", {"added_tokens": []})
    assert choose(tmp_path, 128_354)[0].kind == "huggingface"
    assert choose(tmp_path, 128_354, config={"tokenizer_vocab": "o200k_base"})[0].name == "o200k_base"
    both = {"config": {"tokenizer_vocab": "o200k_base"}}
    assert choose(tmp_path, 128_354, overrides={"vocabulary": "cl100k_base"}, **both)[0].name == "cl100k_base"
    assert choose(tmp_path, 128_354, overrides={"vocabulary": "files"}, **both)[0].kind == "huggingface"
    assert choose(tmp_path, 128_354, overrides={"vocabulary": "none"}, **both)[0].kind == "none"


def test_unknown_vocabularies_are_refused_with_the_list(tmp_path: Path) -> None:
    for name in ("custom", "gpt2", 7, ["llama3"], {}):
        with pytest.raises(UnsupportedFormat, match="llama3"):
            choose(tmp_path, 64, config={"tokenizer_vocab": name})
    for name in ("gpt2", "/etc/passwd", "../../x.tiktoken", "a\0.tiktoken", "files"):
        with pytest.raises(InvalidRequest):
            choose(tmp_path, 64, overrides={"vocabulary": name})


def test_a_tiktoken_file(tmp_path: Path) -> None:
    ranks = b"".join(base64.b64encode(bytes([byte])) + b" %d\n" % byte for byte in range(256))
    (tmp_path / "mine.tiktoken").write_bytes(ranks)
    write_json(tmp_path / "tokenizer_config.json", {
        "added_tokens_decoder": {"256": {"content": "<s>"}, "257": {"content": "</s>"}, "999": {"content": "<far>"}},
        "bos_token": "<s>", "eos_token": {"content": "</s>"},
    })  # fmt: skip
    found, _ = choose(tmp_path, 300, config={"tokenizer_vocab": "custom"})
    assert (found.kind, found.path) == ("tiktoken", str(tmp_path / "mine.tiktoken"))
    assert (found.bos_token_id, found.eos_token_ids) == (256, (257,))
    assert found.added_tokens == (("<s>", 256), ("</s>", 257))
    named, _ = choose(tmp_path, 300, overrides={"vocabulary": str(tmp_path / "mine.tiktoken")})
    assert named.kind == "tiktoken"
    (tmp_path / "mine.tiktoken").rename(tmp_path / "cl100k_base.tiktoken")
    assert choose(tmp_path, 300)[0].name == "cl100k_base"


@pytest.mark.parametrize("place", ["text_config", "llm_config", "thinker_config"])
def test_end_tokens_of_a_text_model_within_another(tmp_path: Path, place: str) -> None:
    write_json(tmp_path / "tokenizer.json", {"added_tokens": []})
    own = {"eos_token_id": [7, 9]}
    config = {place: {"text_config": own} if place == "thinker_config" else own}
    assert choose(tmp_path, 64, config=config)[0].eos_token_ids == (7, 9)
    assert choose(tmp_path, 64, config=config | {"eos_token_id": 5})[0].eos_token_ids == (5,)


def test_the_vocabulary_of_kimi(tmp_path: Path) -> None:
    ranks = b"".join(base64.b64encode(bytes([byte])) + b" %d\n" % byte for byte in range(256))
    (tmp_path / "tiktoken.model").write_bytes(ranks)
    write_json(tmp_path / "tokenizer_config.json", {
        "added_tokens_decoder": {"256": {"content": "[BOS]"}, "258": {"content": "<|im_end|>"}},
        "bos_token": "[BOS]", "eos_token": "<|im_end|>", "tokenizer_class": "TikTokenTokenizer",
    })  # fmt: skip
    found, facts = choose(tmp_path, 300, config={"model_type": "kimi_linear"}, format_="huggingface")
    assert (found.kind, found.path) == ("tiktoken", str(tmp_path / "tiktoken.model"))
    assert (found.bos_token_id, found.eos_token_ids) == (None, (258,))  # its code puts none before a text
    assert "as Kimi's does" in next(fact.evidence for fact in facts.facts if fact.name == "vocabulary")
    named, _ = choose(tmp_path, 300, overrides={"vocabulary": "tiktoken.model"})
    assert named.kind == "tiktoken"


def test_the_vocabulary_of_hunyuan(tmp_path: Path) -> None:
    """Its control tokens follow on the file's different tokens, and stand in no other file."""
    lines = [base64.b64encode(bytes([byte])) + b" %d\n" % byte for byte in range(256)]
    (tmp_path / "hy.tiktoken").write_bytes(b"".join([*lines, lines[7]]))
    write_json(tmp_path / "tokenizer_config.json", {"bos_token": "<|startoftext|>", "eos_token": "<|eos|>"})
    found, _ = choose(tmp_path, 512, config={"model_type": "hunyuan_v1_dense"}, format_="huggingface")
    assert (found.kind, found.bos_token_id, found.eos_token_ids) == ("tiktoken", None, (259,))
    assert found.added_tokens[:3] == (("<|endoftext|>", 256), ("<|startoftext|>", 257), ("<|bos|>", 258))
    assert found.added_tokens[-1] == ("<|extra_204|>", 465)


def test_tokenizer_model_may_be_a_rank_file_or_pieces(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(b"\n\x0e\n\x05<unk>\x15")
    with pytest.raises(CorruptCheckpoint, match="no SentencePiece model"):
        choose(tmp_path, 32_000)
    (tmp_path / "tokenizer.model").write_bytes(b"IQ== 0\nIg== 1\n")
    assert choose(tmp_path, 128_256)[0].name == "llama3"
    assert choose(tmp_path, 600)[0].kind == "tiktoken"


def test_llama3_ends_at_the_end_of_a_turn(tmp_path: Path) -> None:
    plain, _ = choose(tmp_path, 128_256, format_="huggingface")
    assert plain.bos_token_id == 128_000
    assert plain.eos_token_ids == (128_001, 128_008, 128_009)
    assert dict(plain.special_tokens)["bos_token"] == "<|begin_of_text|>"
    agents, _ = choose(tmp_path, 128_354)
    assert set(agents.eos_token_ids) == {128_001, 128_008, 128_009, 128_304, 128_340}


def test_default_template_needs_oxidizr_and_the_agent_rows(tmp_path: Path) -> None:
    assert choose(tmp_path, 128_354)[0].chat_template == OXIDIZR_TEMPLATE
    assert choose(tmp_path, 100_315)[0].chat_template == OXIDIZR_TEMPLATE
    assert choose(tmp_path, 128_256)[0].chat_template is None
    assert choose(tmp_path, 100_278)[0].chat_template is None
    assert choose(tmp_path, 128_354, format_="huggingface")[0].chat_template is None


def test_default_template_renders_the_documented_form() -> None:
    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(OXIDIZR_TEMPLATE, {"raise_exception": refuse})
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    assert template.render(messages=messages, add_generation_prompt=True) == (
        "<|system|>\nBe brief.\n<|user|>\nHi\n<|assistant|>\n"
    )
    assert template.render(messages=messages[1:], bos_token="<b>") == "<b><|user|>\nHi\n"
    with pytest.raises(jinja2.TemplateError, match="robot"):
        template.render(messages=[{"role": "robot", "content": ""}])


def test_default_template_writes_calls_and_results_with_agent_tokens() -> None:
    template = make_environment().from_string(OXIDIZR_TEMPLATE)
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": {"x": "ü"}}}
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": "12"},
    ]
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    text = template.render(messages=messages, tools=tools, add_generation_prompt=True)
    assert text.startswith("<|system|>\nBe brief.\n\n") and text.count("Be brief.") == 1
    assert '\n{"name": "f", "parameters": {"type": "object"}}\n' in text
    assert text.endswith(
        '<|user|>\nHi\n<|assistant|>\n<|function|>{"name": "f", "args": {"x": "ü"}}<|/function|>\n'
        "<|result|>12<|/result|>\n<|assistant|>\n"
    )
    assert "<|system|>" not in template.render(messages=messages[1:])
    assert template.render(messages=messages[1:2], tools=tools).startswith("<|system|>\nFunctions")
    assert tool_format_of(OXIDIZR_TEMPLATE) == "agent" and uses_tools(OXIDIZR_TEMPLATE)
