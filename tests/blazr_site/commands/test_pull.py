"""``blazr pull --preview`` and ``blazr search`` on a hub on loopback."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from blazr_site.cli import main
from blazr_site.commands import pull
from inference.errors import InvalidRequest
from models_registry.hub_preview import hub_preview, hub_search
from tests.models_registry.detection.builders import small_hybrid, write_checkpoint
from tests.models_registry.gguf_content import llama_gguf
from tests.models_registry.tiny_hub import tiny_hub


@pytest.fixture
def hub(tmp_path, monkeypatch):
    shapes, config = small_hybrid()
    with tiny_hub(write_checkpoint(tmp_path / "tiny", shapes, config)) as (endpoint, handler):
        monkeypatch.setattr(
            "blazr_site.commands.search.hub_search", lambda text, limit: hub_search(text, limit, endpoint=endpoint)
        )
        monkeypatch.setattr(
            "blazr_site.commands.pull.hub_preview",
            lambda repo, revision: hub_preview(repo, revision, endpoint=endpoint, cache_dir=tmp_path / "cache"),
        )
        yield handler


def test_the_folder_of_a_model_is_printed_as_it_is(monkeypatch, capsys):
    """A name in brackets is no style."""
    row = SimpleNamespace(served_model_name="m", architecture="Some")
    monkeypatch.setattr(pull, "pull_model", lambda repo, revision: Path("/[old]/[/m]"))
    monkeypatch.setattr(pull, "checkpoint_register", lambda **values: row)
    monkeypatch.setattr(pull, "model_origin", lambda repo: repo)
    given = argparse.Namespace(repo="a/m", file=None, preview=False, server=False, revision=None, name=None)
    assert pull.run(given) == 0
    assert "Files are in /[old]/[/m]." in capsys.readouterr().err


def test_a_search_prints_a_table_or_json(hub, capsys):
    assert main(["search", "tiny"]) == 0
    out = capsys.readouterr().out
    assert "org/tiny " in out and "(gated)" in out
    assert main(["search", "tiny", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["repo_id"] == "org/tiny"
    assert main(["search", "nothing"]) == 1


def arguments(**values):
    return argparse.Namespace(
        **{"repo": "org/tiny", "revision": None, "file": None, "json": False, "preview": True, **values}
    )


def test_a_preview_prints_files_and_what_would_fit(hub, capsys):
    assert pull.run(arguments()) in (0, 1)
    out = capsys.readouterr().out
    assert "model.safetensors" in out and "left out: 8 B of other files" in out and "fits into" in out
    pull.run(arguments(json=True))
    assert json.loads(capsys.readouterr().out)["weights_bytes"] > 0
    del hub.files["model.safetensors"]
    assert pull.run(arguments()) == 1
    assert "no .gguf files" in capsys.readouterr().out
    with pytest.raises(InvalidRequest, match="repositories of the hub"):
        pull.run(arguments(repo="pypi:tiny"))


def test_a_preview_lists_the_gguf_models_and_the_chosen_one(hub, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "own"))
    hub.files = {"T-Q4_K_M.gguf": llama_gguf(), "T-Q8_0.gguf": llama_gguf(seed=2), "mmproj-T.gguf": b"no"}
    assert pull.run(arguments()) == 0
    out = capsys.readouterr().out
    for words in ("org/tiny:Q8_0", "chosen", "T-Q4_K_M.gguf is taken", "ignored, as they are", "llama by its header"):
        assert words in " ".join(out.split())
    assert pull.run(arguments(file="T-Q8_0.gguf")) == 0
    assert "T-Q4_K_M.gguf is taken" not in " ".join(capsys.readouterr().out.split())
    for values in ({"repo": "org/tiny:Q4_K_M"}, {"repo": "pypi:tiny"}, {"file": "model.safetensors"}):
        with pytest.raises(InvalidRequest, match="--file"):
            pull.run(arguments(**{"file": "T-Q8_0.gguf", **values}))
