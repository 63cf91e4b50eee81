"""Models in Ollama's words: what is there, what runs, and everything about one."""

from __future__ import annotations

import dataclasses

import pytest

from inference.api.ollama.models import running, shown, tags
from inference.errors import UnknownModel
from inference.values.principal import LOCAL, principal_set
from inference.values.states import ResidentModel, WorkerState
from models_registry.aliases import alias_promote
from tests.inference.rows import TEMPLATE, make_adapter, make_checkpoint

pytestmark = pytest.mark.django_db


@pytest.fixture
def tiny(db):
    return make_checkpoint(num_parameters=135_400_000, size_bytes=270, num_layers=2)


def workers(*models: ResidentModel, devices: tuple[str, ...]) -> dict[str, WorkerState]:
    return {
        device: WorkerState(device, device=device, models=(model,))
        for device, model in zip(devices, models, strict=True)
    }


def test_tags_are_checkpoints_and_their_aliases(tiny):
    alias_promote(name="prod", checkpoint=tiny)
    make_checkpoint("broken", state="missing")
    plain, alias = tags()
    assert (plain["name"], alias["name"], alias["model"]) == ("tiny", "prod", "prod")
    assert plain["digest"] == alias["digest"]
    assert (plain["size"], plain["details"]["parameter_size"]) == (270, "135M")
    assert plain["details"]["quantization_level"] == "float32"


def test_a_key_sees_the_tags_of_its_models(tiny):
    alias_promote(name="prod", checkpoint=tiny)
    make_checkpoint("other")
    principal_set(dataclasses.replace(LOCAL, models=frozenset({"tiny"})))
    try:
        assert [item["name"] for item in tags()] == ["tiny"]
    finally:
        principal_set(LOCAL)


def test_a_key_for_an_alias_or_an_adapter_sees_their_tags_alone(tiny):
    alias_promote(name="prod", checkpoint=tiny)
    make_adapter(tiny)
    principal_set(dataclasses.replace(LOCAL, models=frozenset({"prod", "tiny:sql"})))
    try:
        assert [item["name"] for item in tags()] == ["prod", "tiny:sql"]
        assert running(workers(ResidentModel(str(tiny.pk), "ready"), devices=("cpu",))) == []
    finally:
        principal_set(LOCAL)


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0"), (999, "999"), (1_500, "1.5K"), (6_738_000_000, "6.74B"), (70_600_000_000, "70.6B")]
)
def test_counts_of_parameters_are_short(count, text, db):
    make_checkpoint(num_parameters=count)
    assert tags()[0]["details"]["parameter_size"] == text


def test_running_models_are_summed_over_workers(tiny):
    ready = ResidentModel(str(tiny.pk), "ready", memory_bytes=100, last_used_at=1e9, keep_alive_s=60, max_model_len=256)
    later = dataclasses.replace(ready, last_used_at=1e9 + 5)
    (found,) = running(workers(ready, later, devices=("cuda:0", "cpu")))
    assert (found["name"], found["size"], found["size_vram"], found["context_length"]) == ("tiny", 200, 100, 256)
    assert found["expires_at"] == "2001-09-09T01:47:45Z"


def test_a_model_that_stays_has_an_end_far_away(tiny):
    (found,) = running(workers(ResidentModel(str(tiny.pk), "ready"), devices=("cpu",)))
    assert found["expires_at"].startswith("2318-")
    assert found["context_length"] == 4096


def test_loading_and_unknown_models_do_not_run(tiny):
    loading, unknown = ResidentModel(str(tiny.pk), "loading"), ResidentModel("unknown", "ready")
    assert running(workers(loading, unknown, devices=("cuda:0", "cpu"))) == []


def test_a_model_is_shown_with_its_settings_and_capabilities(db):
    template = TEMPLATE + "{{ tools }}{{ enable_thinking }}"
    row = make_checkpoint(template=template, settings={"temperature": 0.5, "quant": "int8"}, num_layers=2)
    row.inspection["spec"] = {"hidden_size": 64}
    row.save()
    found = shown(str(row.pk))
    assert found["capabilities"] == ["completion", "embedding", "tools", "thinking"]
    assert found["parameters"] == 'quant "int8"\ntemperature 0.5'
    assert found["details"]["quantization_level"] == "int8"
    assert found["model_info"]["oxidizr.embedding_length"] == 64
    assert found["model_info"]["general.basename"] == "tiny"  # Copilot's name of the model
    assert (found["template"], found["modelfile"]) == (template, "FROM tiny\n")


def test_a_model_without_a_template_only_completes(db):
    row = make_checkpoint(template=None)
    found = shown(str(row.pk))
    assert (found["template"], found["capabilities"]) == ("", ["completion", "embedding"])
    assert "oxidizr.embedding_length" not in found["model_info"]


@pytest.mark.parametrize("checkpoint_id", ["nonsense", "0b5b6f1e-0d9a-4f5e-9b57-9b4f5b3f6d11"])
def test_a_deleted_model_is_unknown(checkpoint_id, db):
    with pytest.raises(UnknownModel):
        shown(checkpoint_id)
