"""``blazr quantise``: sizes with units, and one line for what can't be done."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from blazr_site.cli import main
from blazr_site.commands import quantise
from blazr_site.commands.quantise import parse_size
from inference.errors import InvalidRequest

QUICK = (
    "quantise", "--model", "demo", "--cpu", "--tokens", "60", "--correct", "60", "--window", "30", "--bytes", "1.3MB",
)  # fmt: skip
"""By default many more tokens are corrected on, which takes most of the time."""


@pytest.mark.parametrize(
    ("value", "size"),
    [
        ("4GB", 4 * 10**9), ("1.5 MiB", 3 << 19), ("700", 700), ("2gib", 2 << 30), ("3 kB", 3000), (None, None),
        ("10B", 10),
    ],
)  # fmt: skip
def test_sizes(value: str | None, size: int | None) -> None:
    assert parse_size(value) == size


@pytest.mark.parametrize("value", ["", "x", "-1", "0", "4 gigs", "1e9", "GB", "0.1", "٣GB"])
def test_what_is_no_size(value: str) -> None:
    with pytest.raises(InvalidRequest, match="write a number and MB, GB, MiB or GiB"):
        parse_size(value)


def test_the_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    target = tmp_path / "out"
    template = tmp_path / "template.jinja"
    template.write_text("{{ messages[0].content }}")
    options = [*QUICK, "-o", str(target)]
    assert main([*options, "--json", "--chat-template", str(template)]) == 0
    written = capsys.readouterr()
    assert "s left" in written.err
    assert "isn't written" not in written.err
    assert (target / "chat_template.jinja").read_text() == template.read_text()
    found = json.loads(written.out)
    assert found["size_bytes"] == (target / "model.safetensors").stat().st_size <= 1_300_000
    assert main(["quality", "--model", str(target), "--against", "demo", "--quant", "none", "--tokens", "60",
                 "--window", "30", "--cpu", "--json"]) == 0  # fmt: skip
    first, second = json.loads(capsys.readouterr().out)["forms"]
    assert (first["quant"], second["quant"]) == ("none", "none")
    assert 0 == first["mean_kl"] < second["mean_kl"] < 2 * found["divergence"]["mean_kl"]
    assert main(["info", "--model", str(target)]) == 0
    assert f"KL {found['divergence']['mean_kl']:.2e} nats as measured on Python's" in capsys.readouterr().out
    assert main(options) == 2
    assert "isn't an empty directory; name another one with -o." in capsys.readouterr().err
    earlier = ["--measurements", str(target / "quantisation.json"), "--no-curve"]
    assert main([*options[:-1], str(tmp_path / "smaller"), "--bytes", "900kB", *earlier]) == 0
    said = capsys.readouterr().err
    assert "measuring a plan of" in said and "measuring layers" not in said
    assert main([*options[:-1], str(tmp_path / "third"), "--tokens", "50", *earlier]) == 2
    assert "was measured on other weights or another text" in capsys.readouterr().err


def test_several_files_and_what_is_not_in_them(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    target = tmp_path / "out"
    assert main([*QUICK, "--shard-size", "500kB", "--override", "max_position_embeddings=64", "-o", str(target)]) == 0
    assert "--override max_position_embeddings isn't written to the output" in " ".join(capsys.readouterr().err.split())
    shards = sorted(target.glob("*.safetensors"))
    assert [path.name for path in shards] == [f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]
    assert (target / "model.safetensors.index.json").is_file()
    assert main(["generate", "--model", str(target), "--prompt", "a", "--max-tokens", "2", "--cpu"]) == 0
    assert main([*QUICK, "--shard-size", "many", "-o", str(tmp_path / "other")]) == 2
    assert "--shard-size is 'many'; write a number" in capsys.readouterr().err


def test_sigterm_ends_it_as_ctrl_c_does(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(quantise, "quantise_checkpoint", lambda *_, **__: os.kill(os.getpid(), signal.SIGTERM))
    assert main(["quantise", "--model", "demo", "--cpu", "-o", str(tmp_path / "out"), "--bytes", "1.3MB"]) == 130
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "say how small or how close"), (["--max-kl", "-1"], "--max-kl is -1; it must be above 0"),
        (["--bytes", "10"], "can't be made smaller than"), (["--max-kl", "1", "--tokens", "1"], "--tokens is 1"),
        (["--max-kl", "1", "--correct", "-1"], "--correct is -1; it must be at least 0"),
    ],
)  # fmt: skip
def test_bad_options(options: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["quantise", "--model", "demo", "-o", str(tmp_path / "out"), *options]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
