"""``blazr generate --adapter`` and ``blazr merge``, with the demo model, whose layers are of several types."""

from __future__ import annotations

import io
import json
import sys
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from blazr_site.cli import main
from blazr_site.commands import generate
from inference.demo import __file__ as demo

DEMO = Path(demo).parent / "checkpoint"
TARGETS = ("in_proj", "out_proj", "gate_proj", "down_proj")


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter of Mamba-2's projections and of each expert."""
    directory = tmp_path_factory.mktemp("adapter")
    generator = torch.Generator().manual_seed(1)
    tensors = {}
    with safe_open(DEMO / "model.safetensors", "pt") as file:
        for name in file.keys():  # noqa: SIM118
            module, _, leaf = name.rpartition(".")
            if leaf == "weight" and module.rpartition(".")[2] in TARGETS:
                outputs, inputs = file.get_slice(name).get_shape()
                prefix = f"base_model.model.{module}"
                tensors[f"{prefix}.lora_A.weight"] = torch.randn(4, inputs, generator=generator) * inputs**-0.5
                tensors[f"{prefix}.lora_B.weight"] = torch.randn(outputs, 4, generator=generator)
    save_file(tensors, directory / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 4, "target_modules": list(TARGETS)}
    (directory / "adapter_config.json").write_text(json.dumps(config))
    return directory


def generated(capsys: pytest.CaptureFixture[str], *options: str, model: str = "demo") -> str:
    line = ["generate", "--model", model, "--cpu", "--dtype", "float32", "--prompt", "A list", "--temperature", "0"]
    capsys.readouterr()
    assert main([*line, "--max-tokens", "16", *options]) == 0
    return capsys.readouterr().out


def test_an_adapter_by_request_merged_while_loading_and_to_disk(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, adapter: Path
) -> None:
    plain, adapted = generated(capsys), generated(capsys, "--adapter", str(adapter))
    assert plain != adapted
    assert generated(capsys, "--adapter", str(adapter), "--merged") == adapted
    target = tmp_path / "merged"
    assert (
        main(
            [
                "merge",
                "--model",
                "demo",
                "--adapter",
                f"{adapter}=0.5",
                "--adapter",
                f"{adapter}=0.5",
                "-o",
                str(target),
            ]
        )
        == 0
    )
    assert "2 adapters merged by linear" in capsys.readouterr().err.replace("\n", " ")
    assert generated(capsys, model=str(target)) == adapted


def test_bad_input_is_one_line_and_leaves_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, adapter: Path
) -> None:
    line = ["generate", "--model", "demo", "--cpu", "--prompt", "A list"]
    assert main([*line, "--merged"]) == 2
    assert "--merged merges an adapter" in capsys.readouterr().err
    assert main([*line, "--adapter", str(tmp_path)]) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("error: ")
    assert (
        main(["merge", "--model", "demo", "--adapter", str(adapter), "--method", "slerp", "-o", str(tmp_path / "out")])
        == 2
    )
    assert "slerp mixes 2 adapters, not 1" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("output", "shown"), [(Terminal(), "\\x1b[2Ja\n"), (io.StringIO(), "\x1b[2Ja\n")])
def test_a_models_text_steers_no_terminal(monkeypatch: pytest.MonkeyPatch, output: io.StringIO, shown: str) -> None:
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "duration_s": 1.0, "ttft_s": 1.0}
    events = [{"type": "delta", "text": "\x1b[2Ja"}, {"type": "done", "usage": usage}]
    llm = SimpleNamespace(events=lambda *_, **__: iter(events), close=lambda: None)
    monkeypatch.setattr(generate, "_load", lambda _: (llm, {}))
    monkeypatch.setattr(sys, "stdout", output)
    values = {"max_tokens": 1, "temperature": 0.0, "top_p": 1.0, "top_k": 0, "seed": 0}
    generate.run(Namespace(prompt="", state=None, **values))
    assert output.getvalue() == shown
