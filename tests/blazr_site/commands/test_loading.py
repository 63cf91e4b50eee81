"""Loading the model of a command in this process."""

from __future__ import annotations

from argparse import Namespace

import pytest
import torch

from blazr_site.commands import loading
from inference.errors import InvalidRequest


def arguments(**values) -> Namespace:
    defaults = {"model": "demo", "vocab": None, "override": [], "cpu": True, "dtype": "auto", "quant": "none",
                "speculative": None}  # fmt: skip
    return Namespace(**defaults | values)


def test_overrides_are_read_as_json_where_they_can_be():
    given = arguments(override=["top_k=1", "name=x=y", "tied=true"], vocab="llama3")
    assert loading.overrides_from(given) == {"top_k": 1, "name": "x=y", "tied": True, "vocabulary": "llama3"}
    with pytest.raises(InvalidRequest, match="must look like FACT=VALUE"):
        loading.overrides_from(arguments(override=["top_k"]))


def test_the_device_is_the_first_one_unless_the_cpu_is_wanted(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert loading.choose_device(force_cpu=True) == "cpu"
    assert loading.choose_device(force_cpu=False) == "cuda:0"


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
