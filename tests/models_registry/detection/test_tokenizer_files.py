"""What is read from a checkpoint's tokenizer files: special ids, templates; nothing that is oversized or broken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from inference.errors import CheckpointError, CorruptCheckpoint
from tests.models_registry.detection.builders import choose, write_json

HF_TOKENIZER: dict[str, Any] = {
    "added_tokens": [
        {"id": 10, "content": "<bos>", "special": True},
        {"id": 11, "content": "<eos>", "special": True},
        {"id": 12, "content": "<|im_end|>", "special": True},
        {"id": 900, "content": "<|eot_id|>", "special": True},
        {"id": "x", "content": "bad"}, 7,
    ],
    "post_processor": {
        "type": "Sequence",
        "processors": [
            {"type": "ByteLevel"},
            {
                "type": "TemplateProcessing",
                "single": [{"SpecialToken": {"id": "<bos>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                "special_tokens": {"<bos>": {"id": "<bos>", "ids": [10], "tokens": ["<bos>"]}},
            },
        ],
    },
    "model": {"type": "BPE", "vocab": {"a": 0, "</s>": 2}},
}  # fmt: skip


def test_huggingface_files(tmp_path: Path) -> None:
    write_json(tmp_path / "tokenizer.json", HF_TOKENIZER)
    write_json(tmp_path / "generation_config.json", {"eos_token_id": [13, 11, 5000]})
    write_json(tmp_path / "tokenizer_config.json", {"eos_token": "</s>", "bos_token": "<bos>"})
    found, facts = choose(tmp_path, 64, config={"eos_token_id": 14}, format_="huggingface")
    assert found.bos_token_id == 10
    assert set(found.eos_token_ids) == {13, 11, 14, 12, 2}
    assert any("5000" in warning for warning in facts.warnings)
    assert dict(found.special_tokens) == {"bos_token": "<bos>", "eos_token": "</s>"}
    assert found.chat_template is None
    for add, bos in ((False, None), (True, 10)):
        write_json(tmp_path / "tokenizer_config.json", {"add_bos_token": add, "bos_token": "<bos>"})
        assert choose(tmp_path, 64, format_="huggingface")[0].bos_token_id == bos
    # without a processor that adds it, a BOS token that merely has a name is not put in front
    write_json(tmp_path / "tokenizer.json", HF_TOKENIZER | {"post_processor": None})
    write_json(tmp_path / "tokenizer_config.json", {"bos_token": "<bos>"})
    assert choose(tmp_path, 64, format_="huggingface")[0].bos_token_id is None


@pytest.mark.parametrize(
    "value",
    [
        {"added_tokens": {}}, {"added_tokens": [[]], "post_processor": []}, {"model": []}, {"model": {"vocab": []}},
        {"post_processor": {"processors": 3}}, {"post_processor": {"type": "TemplateProcessing", "single": [3]}},
        {"post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": []}}]}},
        {"post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "a"}}],
                            "special_tokens": {"a": {"ids": "x"}}}},
    ],
)  # fmt: skip
def test_wrong_types_in_tokenizer_json_are_ignored(tmp_path: Path, value: dict) -> None:
    write_json(tmp_path / "tokenizer.json", value)
    write_json(tmp_path / "tokenizer_config.json",
               {"added_tokens_decoder": [], "bos_token": 3, "eos_token": [], "chat_template": 5})  # fmt: skip
    found, _ = choose(tmp_path, 64)
    assert (found.bos_token_id, found.eos_token_ids, found.chat_template) == (None, (), None)


def test_oversized_tokenizer_files_are_refused(tmp_path: Path) -> None:
    tmp_path.mkdir(exist_ok=True)
    with (tmp_path / "tokenizer.json").open("wb") as file:
        file.truncate((32 << 20) + 1)
    with pytest.raises(CorruptCheckpoint, match=r"tokenizer\.json has 33554433 bytes"):
        choose(tmp_path, 64)


def test_template_places(tmp_path: Path) -> None:
    write_json(tmp_path / "tokenizer_config.json", {"chat_template": [
        {"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]})  # fmt: skip
    found = choose(tmp_path, 64)[0]
    assert (found.chat_template, found.chat_template_origin) == ("D", "tokenizer_config.json (default)")
    write_json(tmp_path / "tokenizer_config.json", {"chat_template": "S"})
    assert choose(tmp_path, 64)[0].chat_template == "S"
    write_json(tmp_path / "chat_template.json", {"chat_template": "J"})
    assert choose(tmp_path, 64)[0].chat_template == "J"
    (tmp_path / "chat_template.jinja").write_text("F")
    assert choose(tmp_path, 64)[0].chat_template == "F"
    assert choose(tmp_path, 128_354)[0].chat_template == "F"


def test_a_huge_template_is_refused(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("x" * (1 << 20))
    with pytest.raises(CheckpointError):
        choose(tmp_path, 64)
    (tmp_path / "chat_template.jinja").unlink()
    write_json(tmp_path / "tokenizer_config.json", {"chat_template": "x" * (1 << 20)})
    with pytest.raises(CorruptCheckpoint, match="characters"):
        choose(tmp_path, 64)
