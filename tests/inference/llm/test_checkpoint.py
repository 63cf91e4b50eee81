"""The checkpoint and the options that a program names."""

from __future__ import annotations

from pathlib import Path

import pytest

from inference.errors import InvalidRequest
from inference.llm.checkpoint import checkpoint_to_load
from tests.inference.llm.harness import Checkpoint


def test_a_checkpoint_is_inspected_with_its_options(checkpoint: Checkpoint) -> None:
    found, draft, options = checkpoint_to_load(checkpoint.directory, None, None, {}, {"max_model_len": 32})
    assert found.spec.num_parameters() == checkpoint.spec.num_parameters()
    assert draft is None and options.max_model_len == 32
    assert options.device.startswith(("cpu", "cuda"))


def test_a_draft_model_is_inspected_too(checkpoint: Checkpoint) -> None:
    drafting = f"draft:{checkpoint.directory},k=2"
    _, draft, options = checkpoint_to_load(checkpoint.directory, "cpu", drafting, {}, {})
    assert draft is not None and tuple(draft.weight_paths) == (checkpoint.directory / "model.safetensors",)
    assert options.speculative is not None and options.device == "cpu"


def test_another_tokenizer_and_template(checkpoint: Checkpoint, tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((checkpoint.directory / name).read_bytes())
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    overrides = {"tokenizer_from": str(checkpoint.directory), "chat_template": template}
    found, _, _ = checkpoint_to_load(tmp_path, "cpu", None, overrides, {})
    assert found.tokenizer.kind == "huggingface" and found.tokenizer.chat_template == template


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"colour": 1}, "colour is no option of a load; known are .*quant"),
        ({"quant": "int3"}, "quant is 'int3'"),
        ({"max_model_len": 0}, "max_model_len is 0"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_read(options: dict[str, object], match: str) -> None:
    with pytest.raises(InvalidRequest, match=match):
        checkpoint_to_load("/nowhere", "cpu", None, {}, options)
