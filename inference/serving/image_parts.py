"""Fill in the pictures of a plan: the bytes of stored files, and how many tokens each picture takes."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from inference.errors import PromptTooLong
from inference.files.services import image_file_read
from inference.text.images.image_file import read_part
from inference.values.images import check_images, images_of, is_image, no_images
from inference.values.messages import PromptMessage
from inference.values.plan import GenerationPlan
from inference.values.served_model import ServedModel


def names_image_files(prompts: Iterable[PromptMessage]) -> bool:
    """Whether pictures of ``prompts`` are stored files, which have to be read off the event loop."""
    return any("file_id" in image for prompt in prompts for image in images_of(prompt.get("messages", ())))


def plan_with_images(plan: GenerationPlan, model: ServedModel, tenant: str) -> GenerationPlan:
    """Return ``plan`` with the bytes of all its pictures, each with its number of tokens.

    Args:
        model: It has been checked that it sees if there are pictures.
        tenant: Owns the files that pictures name.

    Raises:
        NotFound: The tenant has no file of an id.
        InvalidRequest: A file is no picture, or exceeds a limit.
        PromptTooLong: The pictures alone have more tokens than the context holds.
    """
    if not any(images_of(prompt.get("messages", ())) for prompt in plan.prompts):
        return plan
    return replace(plan, prompts=tuple(prompt_with_images(prompt, model, tenant) for prompt in plan.prompts))


def prompt_with_images(prompt: PromptMessage, model: ServedModel, tenant: str) -> PromptMessage:
    """Return a conversation as ``plan_with_images`` returns each one of a plan; it raises the same errors."""
    messages: list[dict[str, Any]] = []
    images: list[dict[str, Any]] = []
    for number, message in enumerate(prompt["messages"]):
        content = message.get("content")
        if isinstance(content, list):
            parts = []
            for place, part in enumerate(content):
                if is_image(part):
                    part = _part(part, f"messages.{number}.content.{place}", model, tenant)
                    images.append(part)
                    check_images([{"content": images}])  # before the next file is read: a short request names many
                parts.append(part)
            message = {**message, "content": parts}
        messages.append(message)
    num_tokens = sum(image["tokens"] for image in images)
    if num_tokens >= model.max_model_len:
        raise PromptTooLong.of(model.max_model_len, num_tokens, None, noun="images", param="messages")
    return {**prompt, "messages": messages}


def _part(part: Mapping[str, Any], where: str, model: ServedModel, tenant: str) -> dict[str, Any]:
    if model.images is None:
        raise no_images(model.name)
    found = dict(part)
    if "file_id" in found:
        data = image_file_read(file_id=found.pop("file_id"), tenant=tenant, where=where)
        found |= read_part(base64.b64encode(data).decode(), where)
    found["tokens"] = model.images.layout.fit(found["width"], found["height"]).num_tokens
    return found
