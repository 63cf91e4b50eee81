"""OpenAI's model objects: checkpoints and aliases that the caller may use."""

from __future__ import annotations

import dataclasses

import pytest

from inference.api.openai.model_objects import model_object, model_objects
from inference.errors import UnknownModel
from inference.values.principal import LOCAL, principal_set
from models_registry.aliases import alias_promote
from tests.inference.rows import make_checkpoint

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def models(transactional_db):
    tiny = make_checkpoint("tiny", settings={"max_model_len": 512})
    alias_promote(name="prod", checkpoint=make_checkpoint("large"))
    alias_promote(name="prod", checkpoint=tiny)
    make_checkpoint("broken", state="missing")
    return tiny


@pytest.fixture
def restricted():
    """Lets the caller use some models only."""

    def use(*names: str) -> None:
        principal_set(dataclasses.replace(LOCAL, models=frozenset(names)))

    yield use
    principal_set(LOCAL)


async def test_available_models_are_listed_before_aliases(models):
    found = await model_objects()
    assert [item["id"] for item in found] == ["large", "tiny", "prod"]
    assert found[1] == {
        "id": "tiny",
        "object": "model",
        "created": int(models.created_at.timestamp()),
        "owned_by": "local",
        "max_model_len": 512,
    }


async def test_an_alias_names_its_checkpoint_and_revision():
    found = await model_object(name="prod")
    assert (found["id"], found["root"], found["revision"], found["max_model_len"]) == ("prod", "tiny", 2, 512)


@pytest.mark.parametrize("name", ["missing", "broken", "tin\0y", "prod@1"])
async def test_other_names_are_unknown(name):
    with pytest.raises(UnknownModel, match="does not exist"):
        await model_object(name=name)


async def test_a_key_sees_its_own_models(restricted):
    restricted("prod")
    assert [item["id"] for item in await model_objects()] == ["prod"]
    with pytest.raises(UnknownModel):
        await model_object(name="tiny")
    restricted("tiny")
    assert [item["id"] for item in await model_objects()] == ["tiny"]
