"""ChatOptions: what a chat request says about tools and thinking, before the model is known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

ToolChoice = Literal["none", "auto", "required", "named"]
ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """Checked values of a request.

    Attributes:
        tools: Definitions in OpenAI's shape (``{"type": "function", "function": {name, description, parameters}}``).
        tool_choice: Whether the model may call (auto), must (required) or must not (none) call a tool; ``named``:
            it must call ``tool_name``.
        include_reasoning: The output contains the thinking.
        reasoning_effort: How much to think, for templates that know of it; None: not said.
    """

    tools: tuple[dict[str, Any], ...] = ()
    tool_choice: ToolChoice = "none"
    tool_name: str | None = None
    parallel: bool = True
    include_reasoning: bool = True
    reasoning_effort: ReasoningEffort | None = None

    @property
    def offered(self) -> tuple[dict[str, Any], ...]:
        """The tools that the model is told of: none of them when it must not call any."""
        return () if self.tool_choice == "none" else self.tools

    @property
    def tool_names(self) -> tuple[str, ...]:
        return tuple(tool["function"]["name"] for tool in self.offered)

    @property
    def json_parameters(self) -> tuple[str, ...]:
        """Parameters of the offered tools, as ``function.parameter``, whose values aren't texts."""
        found: list[str] = []
        for tool in self.offered:
            function = tool["function"]
            properties = function.get("parameters", {}).get("properties")
            if isinstance(properties, dict):
                found += [f"{function['name']}.{key}" for key, schema in properties.items() if not _takes_text(schema)]
        return tuple(found)

    def to_dict(self) -> dict[str, Any]:
        return {item.name: getattr(self, item.name) for item in fields(self)} | {"tools": list(self.tools)}

    @classmethod
    def from_dict(cls, payload: Mapping[str, Any]) -> ChatOptions:
        values = {item.name: payload[item.name] for item in fields(cls) if item.name in payload}
        values["tools"] = tuple(values.get("tools", ()))
        return cls(**values)


def _takes_text(schema: Any) -> bool:
    """Whether a value under a JSON schema may be a string; one that doesn't say takes one."""
    if not isinstance(schema, dict):
        return True
    kinds = schema.get("type")
    if kinds is not None:
        return "string" in (kinds if isinstance(kinds, list) else [kinds])
    for name in ("anyOf", "oneOf"):
        if isinstance(schema.get(name), list):
            return any(_takes_text(item) for item in schema[name])
    if isinstance(schema.get("enum"), list):
        return any(isinstance(item, str) for item in schema["enum"])
    return "$ref" not in schema
