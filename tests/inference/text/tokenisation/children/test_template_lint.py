"""Problems of a template that are found without rendering it."""

from __future__ import annotations

import pytest

from inference.text.tokenisation.children.template import make_environment
from inference.text.tokenisation.children.template_lint import MAX_PROBLEMS, MODIFYING, find_problems


def problems(source: str) -> list[tuple[str, int, str]]:
    return find_problems(make_environment(), source, ["bos_token"])


def test_lines_are_those_of_the_source() -> None:
    found = problems("{{ bos_token }}\n{{ messages.pop() }}\n\n{% import 'x' as y %}{{ joiner() }}\n{{ later }}")
    assert [(level, line) for level, line, _ in found] == [("error", 2), ("error", 4), ("error", 4), ("warning", 5)]


@pytest.mark.parametrize("method", sorted(MODIFYING))
def test_methods_that_the_sandbox_refuses_are_found(method: str) -> None:
    (problem,) = problems(f"{{{{ messages.{method}() }}}}")
    assert problem[0] == "error" and f".{method}()" in problem[2]


@pytest.mark.parametrize(
    "source",
    [
        "{% macro turn(m) %}{{ m.content }}{% endmacro %}{{ turn(messages[0]) }}",
        "{% for m in messages %}{{ loop.index }}{{ m['__x'] }}{% if loop.last %}{% break %}{% endif %}{% endfor %}",
        "{% generation %}{{ strftime_now('%Y') }}{% endgeneration %}{{ namespace(x=1).x }}{{ dict(a=1) | tojson }}",
        "{% if tools is not none %}{{ tools[0].function.name.upper() }}{% endif %}{{ range(3) | list }}",
        "{% if shout is defined and shout %}{{ shout() }}{% endif %}",
    ],
)
def test_what_templates_are_written_with_is_no_error(source: str) -> None:
    assert [problem for problem in problems(source) if problem[0] == "error"] == []


def test_the_list_is_bounded() -> None:
    assert len(problems("".join(f"{{{{ x{number} }}}}" for number in range(100)))) == MAX_PROBLEMS
