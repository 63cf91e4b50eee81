"""Child that renders one chat template, and finds its problems without rendering.

The environment is the one that templates are written for: https://huggingface.co/docs/transformers/chat_templating
(``raise_exception``, ``strftime_now``, ``tojson``, loop controls, ``generation`` blocks), minus what only
helps an attacker (``lipsum``, ``cycler``, ``joiner``, names with a leading underscore in ``dict`` and ``namespace``).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import Environment, Template, TemplateError, TemplateSyntaxError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from inference.text.tokenisation.children.loop import Refused, serve
from inference.text.tokenisation.children.template_lint import find_problems


class GenerationBlock(Extension):
    """``{% generation %} … {% endgeneration %}`` marks an assistant's text for training; here it does nothing."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))


class PlainNamespace(Namespace):
    """``namespace`` without names that begin with an underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        for name in dict(*args[1:], **kwargs):
            _check_name(str(name))
        Namespace.__init__(*args, **kwargs)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def plain_dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    """``dict`` without names that begin with an underscore."""
    for name in kwargs:
        _check_name(name)
    return dict(*args, **kwargs)


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """``tojson`` as models were trained with: Jinja's own escapes HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def strftime_now(form: str) -> str:
    """Today, in local time."""
    return datetime.now().astimezone().strftime(form)


def make_environment() -> Environment:
    """A sandbox in which values can't be changed and attributes with underscores can't be read."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, GenerationBlock]
    )
    environment.filters["tojson"] = to_json
    environment.globals.update(
        raise_exception=raise_exception, strftime_now=strftime_now, dict=plain_dict, namespace=PlainNamespace
    )
    for name in ("lipsum", "cycler", "joiner"):
        del environment.globals[name]
    return environment


class Renderer:
    """Compiles once, renders often."""

    def __init__(self) -> None:
        self._source = ""
        self._template: Template | None = None

    def handle(self, request: dict[str, Any]) -> dict[str, Any]:
        """``source`` compiles; ``special_tokens`` finds problems; ``variables`` and ``max_chars`` render."""
        try:
            if "source" in request:
                self._source = request["source"]
                self._template = make_environment().from_string(self._source)
                return {}
            if "special_tokens" in request:
                return {"problems": find_problems(make_environment(), self._source, request["special_tokens"])}
            assert self._template is not None
            return {"text": self._render(request["variables"], request["max_chars"])}
        except TemplateSyntaxError as error:
            raise Refused(f"line {error.lineno}: {error.message}"[:300]) from None
        except TemplateError as error:
            raise Refused(str(error.message)[:300]) from None

    def _render(self, variables: dict[str, Any], max_chars: int) -> str:
        assert self._template is not None
        parts: list[str] = []
        size = 0
        for part in self._template.generate(variables):
            size += len(part)
            if size > max_chars:
                raise Refused(f"the text is longer than {max_chars} characters")
            parts.append(part)
        return "".join(parts)


def _check_name(name: str) -> None:
    if name.startswith("_"):
        raise TemplateError(f"the name {name[:40]!r} is not allowed")


def main(memory_bytes: int, readable: Sequence[Path]) -> None:
    serve(Renderer().handle, memory_bytes, readable)
