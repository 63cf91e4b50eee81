"""Loading the model of a command in this process."""

from __future__ import annotations

import shutil
from argparse import Namespace

import pytest

from blazr_site.commands import loading
from inference.demo.paths import PREBUILT_DIRECTORY
from inference.errors import InvalidRequest
from inference.values.sampling_params import SamplingParams


def arguments(**values) -> Namespace:
    defaults = {"model": "demo", "vocab": None, "chat_template": None, "override": [], "cpu": True, "dtype": "auto",
                "quant": "none", "state_dtype": "auto", "speculative": None}  # fmt: skip
    return Namespace(**defaults | values)


def test_overrides_are_read_as_json_where_they_can_be():
    given = arguments(override=["top_k=1", "name=x=y", "tied=true"], vocab="llama3")
    assert loading.overrides_from(given) == {"top_k": 1, "name": "x=y", "tied": True, "vocabulary": "llama3"}
    with pytest.raises(InvalidRequest, match="must look like FACT=VALUE"):
        loading.overrides_from(arguments(override=["top_k"]))


def test_a_chat_template_of_a_file_is_a_fact_and_is_checked(tmp_path, capsys):
    file = tmp_path / "own.jinja"
    file.write_text("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{{ colour }}")
    given = arguments(chat_template=str(file))
    assert loading.overrides_from(given) == {"chat_template": file.read_text()}
    assert loading.inspect_to_run(given).tokenizer.chat_template == file.read_text()
    assert "colour is only set if a request has it" in " ".join(capsys.readouterr().err.split())
    file.write_text("{% for m in messages %}")
    with pytest.raises(InvalidRequest, match=r"can't be used: line 1: Unexpected end of template"):
        loading.inspect_model(given)


def test_weights_without_a_tokenizer_chat_with_that_of_another_model(tmp_path):
    for name in ("config.json", "model.safetensors"):
        shutil.copy(PREBUILT_DIRECTORY / name, tmp_path / name)
    given = arguments(model=str(tmp_path), override=["tokenizer_from=demo"])
    llm = loading.load_to_run(given, loading.inspect_to_run(given), max_num_seqs=1)
    try:
        params = SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True)
        events = [*llm.events([{"role": "user", "content": "lambda"}], params)]
        assert "".join(event.get("text", "") for event in events)
    finally:
        llm.close()


def test_the_model_is_loaded_as_the_options_say():
    given = arguments(quant="int8", dtype="float32", speculative="draft:demo,k=2")
    llm = loading.load_to_run(given, loading.inspect_to_run(given), max_num_seqs=2)
    try:
        stats = llm.stats()
        assert stats["speculation"] is not None
        plain = arguments(dtype="float32")
        other = loading.load_to_run(plain, loading.inspect_to_run(plain), max_num_seqs=2)
        try:
            assert other.stats()["speculation"] is None
        finally:
            other.close()
    finally:
        llm.close()
