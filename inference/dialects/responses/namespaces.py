"""Offer the functions of a namespace under joined names, and find the namespace of a call again.

Codex groups the tools of an MCP server as ``{"type": "namespace", "name", "description", "tools": [functions]}``, and
runs a call only if it has ``namespace`` and ``name`` apart. Chat templates know functions only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from inference.dialects.members import check_members, string_member
from inference.errors import InvalidRequest, shown

Tool = Mapping[str, Any]


def joined_name(namespace: str | None, name: str) -> str:
    """Return the name by which the model calls a function."""
    return name if namespace is None else f"{namespace}__{name}"


def namespace_functions(where: str, tool: Tool) -> list[Tool]:
    """Return the functions of a namespace, under joined names; the first one's description begins with its own.

    Args:
        where: The tool's path, for errors.

    Raises:
        InvalidRequest: A member has the wrong type.
        UnsupportedFeature: It has another member.
    """
    check_members(where, tool, {"type", "name", "description", "tools"})
    namespace, tools = string_member(where, tool, "name"), tool.get("tools")
    if not isinstance(tools, list) or not all(isinstance(item, dict) for item in tools):
        raise InvalidRequest(f"{where}.tools must be a list of objects, got {shown(tools)}.", param=f"{where}.tools")
    found: list[Tool] = []
    for number, function in enumerate(tools):
        name = string_member(f"{where}.tools.{number}", function, "name")
        found.append({**function, "name": joined_name(namespace, name)})
    if tool.get("description") is not None and found:
        texts = [string_member(where, tool, "description"), found[0].get("description")]
        found[0] = {**found[0], "description": "\n\n".join(text for text in texts if text)}
    return found


def called_members(tools: Sequence[Tool], name: str) -> dict[str, str]:
    """Return ``name``, and ``namespace`` if it has one, of the function that the model calls by ``name``."""
    return next((members for joined, members in _members(tools) if joined == name), {"name": name})


def _members(tools: Sequence[Tool]) -> Iterator[tuple[str, dict[str, str]]]:
    for tool in tools:
        if tool.get("type") == "namespace":
            for function in tool["tools"]:
                members = {"name": function["name"], "namespace": tool["name"]}
                yield joined_name(tool["name"], function["name"]), members
