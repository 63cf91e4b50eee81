"""Check chat templates that people set in place of a checkpoint's own."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from inference.errors import Unavailable
from inference.host.held_place import held_place
from inference.text.template_check import TemplateCheck, check_template, require_usable
from models_registry.detection.facts import CHAT_TEMPLATE
from models_registry.detection.inspection import Inspection
from models_registry.detection.tokenizer_files import TOKEN_KEYS

MAX_CHECKS = 2
"""Checks at a time in this process; each has a child process with its own limits."""
WAIT_S = 20.0

_checks = threading.BoundedSemaphore(MAX_CHECKS)


def template_check(source: str, special_tokens: Mapping[str, str] | None = None) -> TemplateCheck:
    """Find the problems of a template, and render the sample conversation.

    Args:
        special_tokens: Of the tokenizer; None: it isn't known yet, so all of them are taken to be there.

    Raises:
        Unavailable: Other checks are running.
    """
    if special_tokens is None:
        special_tokens = {name: f"<{name}>" for name in TOKEN_KEYS}
    refusal = Unavailable(
        f"{MAX_CHECKS} chat templates have been checked for {WAIT_S:.0f} s; retry later.", retry_after_s=5
    )
    with held_place(_checks, refusal, wait_s=WAIT_S):
        return check_template(source, special_tokens)


def check_before_inspection(overrides: Mapping[str, Any]) -> None:
    """Refuse a template that no tokenizer makes usable.

    Raises:
        InvalidRequest: It has errors.
        Unavailable: Other checks are running.
    """
    if CHAT_TEMPLATE in overrides:
        require_usable(template_check(overrides[CHAT_TEMPLATE]))


def check_after_inspection(inspection: Inspection, overrides: Mapping[str, Any], *, is_new: bool) -> Inspection:
    """Return the inspection with the problems of the template that a person set as warnings.

    Args:
        overrides: Those that the checkpoint was inspected with.
        is_new: Whether the template is being set now, and is refused if it has errors.

    Raises:
        InvalidRequest: The template is new and has errors.
        Unavailable: Other checks are running.
    """
    if CHAT_TEMPLATE not in overrides:
        return inspection
    check = template_check(overrides[CHAT_TEMPLATE], dict(inspection.tokenizer.special_tokens))
    if is_new:
        require_usable(check)
    found = tuple(f"chat template: {text}." for text in (*check.errors, *check.warnings))
    return replace(inspection, warnings=(*inspection.warnings, *found))
