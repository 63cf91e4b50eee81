"""A chat template that a person set: checked, stored with its author, shown beside the own one, taken away."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from django.contrib.auth.models import User

from inference.errors import InvalidRequest, Unavailable
from models_registry import chat_templates, selectors, services
from models_registry.models import CheckpointOverride

pytestmark = pytest.mark.django_db

OWN = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
SET = OWN + "{% if add_generation_prompt %}[assistant] {% endif %}"


@pytest.fixture
def chatty(hybrid: Path) -> Path:
    (hybrid / "chat_template.jinja").write_text(OWN)
    return hybrid


def fact(row, name: str) -> dict:
    return next(item for item in row.inspection["facts"] if item["name"] == name)


def test_a_template_is_set_with_its_author_and_taken_away(chatty: Path, staff: User) -> None:
    row = services.checkpoint_register(path=chatty)
    services.checkpoint_override_set(checkpoint=row, fact="chat_template", value=SET, author=staff)
    row.refresh_from_db()
    tokenizer = selectors.checkpoint_inspection(row).tokenizer
    assert (tokenizer.chat_template, tokenizer.own_chat_template) == (SET, OWN)
    shown = fact(row, "chat_template")
    assert (shown["value"], shown["confidence"]) == ("set by a person", "override")
    assert shown["evidence"] == f"{len(SET)} characters, instead of that of chat_template.jinja ({len(OWN)} characters)"
    assert CheckpointOverride.objects.get().author_name == "vera"
    services.checkpoint_override_clear(checkpoint=row, fact="chat_template")
    row.refresh_from_db()
    tokenizer = selectors.checkpoint_inspection(row).tokenizer
    assert (tokenizer.chat_template, tokenizer.own_chat_template) == (OWN, None)
    assert fact(row, "chat_template")["value"] == "chat_template.jinja"


def test_a_checkpoint_without_a_template_gets_one(hybrid: Path) -> None:
    row = services.checkpoint_register(path=hybrid, overrides={"chat_template": SET})
    assert row.inspection["tokenizer"]["chat_template"] == SET
    assert "no template file" in fact(row, "chat_template")["evidence"]


def test_errors_refuse_and_change_nothing(chatty: Path) -> None:
    row = services.checkpoint_register(path=chatty)
    for source in ("{% if %}", "{{ lipsum() }}" + SET, "x" * (256 * 1024 + 1)):
        with pytest.raises(InvalidRequest):
            services.checkpoint_override_set(checkpoint=row, fact="chat_template", value=source)
    row.refresh_from_db()
    assert row.inspection["tokenizer"]["chat_template"] == OWN
    assert not CheckpointOverride.objects.exists()
    with pytest.raises(InvalidRequest, match="can't be used"):
        services.checkpoint_register(path=chatty, overrides={"chat_template": "{% if %}"})


def test_warnings_stay_with_the_model_as_long_as_its_template(chatty: Path) -> None:
    row = services.checkpoint_register(path=chatty)
    services.checkpoint_override_set(checkpoint=row, fact="chat_template", value=OWN + "{{ colour }}")
    expected = "chat template: line 2: colour is only set if a request has it in chat_template_kwargs."
    assert expected in row.inspection["warnings"]
    services.checkpoint_refresh(checkpoint=row)
    assert expected in row.inspection["warnings"]
    services.checkpoint_override_set(checkpoint=row, fact="max_position_embeddings", value=64)
    assert expected in row.inspection["warnings"]
    services.checkpoint_override_clear(checkpoint=row, fact="chat_template")
    assert not [text for text in row.inspection["warnings"] if text.startswith("chat template")]


def test_setting_the_same_again_adds_nothing_to_the_history(chatty: Path) -> None:
    for _ in range(3):
        services.checkpoint_register(path=chatty, overrides={"chat_template": SET, "eps": 1e-6})
    assert CheckpointOverride.objects.count() == 2


def test_special_tokens_of_the_checkpoint_are_those_of_the_check(chatty: Path) -> None:
    (chatty / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<end>"}))
    row = services.checkpoint_register(path=chatty, overrides={"chat_template": SET + "{{ eos_token }}{{ pad_token }}"})
    warnings = " ".join(row.inspection["warnings"])
    assert "no pad_token" in warnings and "no eos_token" not in warnings
    chat_templates.check_before_inspection({"chat_template": SET + "{{ eos_token }}"})
    with pytest.raises(InvalidRequest):
        chat_templates.check_before_inspection({"chat_template": "{{ nothing() }}"})


def test_checks_are_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_templates, "WAIT_S", 0.01)
    for _ in range(chat_templates.MAX_CHECKS):
        assert chat_templates._checks.acquire(timeout=1)
    try:
        with pytest.raises(Unavailable):
            chat_templates.template_check(SET)
    finally:
        for _ in range(chat_templates.MAX_CHECKS):
            chat_templates._checks.release()
    assert chat_templates.template_check(SET).problems == ()
