"""From a row to a plan: the site's options with the model's own in their place."""

from __future__ import annotations

import pytest

from inference.demo.paths import PREBUILT_DIRECTORY
from inference.errors import UnknownModel
from inference.llm.options import LLMOptions
from inference.worker import load_plan
from models_registry.models import Adapter
from models_registry.services import checkpoint_register, checkpoint_settings_update

pytestmark = pytest.mark.django_db(transaction=True)  # the plan closes the connection


@pytest.fixture
def row():
    return checkpoint_register(path=PREBUILT_DIRECTORY, served_model_name="demo")


@pytest.fixture
def options(monkeypatch) -> list[LLMOptions]:
    """What the plan's sizes are computed with."""
    found = []
    original = load_plan.needed_bytes
    monkeypatch.setattr(
        load_plan, "needed_bytes", lambda spec, given, draft: found.append(given) or original(spec, given, draft)
    )
    return found


def test_without_own_settings_the_sites_options_hold(row, options, settings):
    settings.BLAZR_LLM_OPTIONS = {**settings.BLAZR_LLM_OPTIONS, "max_num_seqs": 3, "cache_bytes": 8 << 20}
    settings.BLAZR_KEEP_ALIVE_S = 7
    plan = load_plan.plan_load(str(row.pk), device="cpu", memory_bytes=123)
    assert options == [LLMOptions(max_num_seqs=3, cache_bytes=8 << 20, memory_bytes=123, max_adapters=0)]
    assert (plan.name, plan.keep_alive_s, plan.max_num_seqs, plan.pinned) == ("demo", 7, 3, False)
    assert plan.needed_bytes == plan.sizes["weights_bytes"] + plan.sizes["states_bytes"]


def test_a_models_own_settings_come_first(row, options, settings):
    own = {"max_num_seqs": 2, "max_model_len": 64, "quant": "int8", "pooling": "last", "dtype": "float32"}
    own["state_dtype"] = "bfloat16"
    checkpoint_settings_update(
        checkpoint=row, values={**own, "keep_alive_s": 0, "pinned": "yes", "speculative": "ngram,k=2"}
    )
    plan = load_plan.plan_load(str(row.pk), device="cpu")
    (found,) = options
    assert {name: getattr(found, name) for name in own} == own
    assert found.speculative is not None
    assert (found.speculative.method, plan.keep_alive_s, plan.pinned) == ("ngram", 0, True)


def test_states_of_an_xlora_share_the_memory_of_the_models(row, settings):
    settings.BLAZR_LLM_OPTIONS = {**settings.BLAZR_LLM_OPTIONS, "max_num_seqs": 1 << 16}
    memory_bytes = 64 << 20
    plain = load_plan.plan_load(str(row.pk), device="cuda:0", memory_bytes=memory_bytes)
    adapter = Adapter.objects.create(
        base=row, name="x", path="/x", digest="d", rank=4, num_values=1000, size_bytes=1, kind=Adapter.Kind.XLORA
    )
    shared = load_plan.plan_load(str(row.pk), device="cuda:0", memory_bytes=memory_bytes)
    states = shared.sizes["states_bytes"]
    assert 0.9 * plain.sizes["states_bytes"] < 2 * states <= plain.sizes["states_bytes"]
    assert states < shared.adapter_bytes < states + 8 * adapter.num_values
    assert shared.needed_bytes <= memory_bytes


def test_states_of_an_xlora_take_what_is_left(row, options, settings):
    settings.BLAZR_LLM_OPTIONS = {**settings.BLAZR_LLM_OPTIONS, "max_num_seqs": 2}
    plain = load_plan.plan_load(str(row.pk), device="cuda:0", memory_bytes=1 << 30)
    Adapter.objects.create(
        base=row, name="x", path="/x", digest="d", rank=4, num_values=1, size_bytes=1, kind=Adapter.Kind.XLORA
    )
    found = load_plan.plan_load(str(row.pk), device="cuda:0", memory_bytes=1 << 30)
    assert found.sizes == plain.sizes
    assert found.adapter_bytes - found.sizes["states_bytes"] in (2, 4), "one value of the base's dtype"
    assert options[1].cache_bytes is None


def test_a_model_that_is_gone_is_named():
    with pytest.raises(UnknownModel):
        load_plan.plan_load("00000000-0000-0000-0000-000000000000", device="cpu")


def test_the_plan_loads_the_model(row):
    llm = load_plan.plan_load(str(row.pk), device="cpu").load(lambda share, name: None)
    try:
        assert llm.max_model_len == row.max_position_embeddings
    finally:
        llm.close()
