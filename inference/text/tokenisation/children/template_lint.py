"""Find what the sandbox refuses in a chat template, and names that nothing gives it, without rendering.

Runs in the child that renders: the source is a program from outside.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from jinja2 import Environment, meta, nodes

Problem = tuple[str, int, str]
"""``error`` or ``warning``, the line, a sentence."""

MAX_PROBLEMS = 20
MODIFYING = frozenset(
    {
        "add", "append", "clear", "difference_update", "discard", "extend", "insert", "intersection_update", "pop",
        "popitem", "remove", "reverse", "setdefault", "sort", "symmetric_difference_update", "update",
    }
)  # fmt: skip
"""Methods that change a list, a dict or a set; the sandbox refuses them."""
SET_BY_REQUESTS = frozenset(
    {"messages", "add_generation_prompt", "tools", "documents", "enable_thinking", "reasoning_effort"}
)
"""Variables of every rendering, and those that fields of requests become."""
_OTHER_FILES = {nodes.Include: "include", nodes.Import: "import", nodes.FromImport: "from", nodes.Extends: "extends"}


def find_problems(environment: Environment, source: str, special_tokens: Collection[str]) -> list[Problem]:
    """Return the problems of a template that compiles, in the order of its lines.

    Args:
        special_tokens: Names of the tokens that the tokenizer has, such as ``bos_token``.
    """
    tree = environment.parse(source)
    problems = [*_refused(tree), *_unknown_names(tree, special_tokens)]
    return sorted(problems, key=lambda problem: problem[1])[:MAX_PROBLEMS]


def _refused(tree: nodes.Template) -> Iterator[Problem]:
    for node in tree.find_all(tuple(_OTHER_FILES)):
        yield "error", node.lineno, f"{{% {_OTHER_FILES[type(node)]} %}} is refused: a template can't read other files"
    for attribute in tree.find_all(nodes.Getattr):
        if attribute.attr.startswith("__"):
            yield (
                "error", attribute.lineno, f"{attribute.attr[:60]} is refused: names with two underscores can't be read"
            )  # fmt: skip
    for call in tree.find_all(nodes.Call):
        if isinstance(call.node, nodes.Getattr) and call.node.attr in MODIFYING:
            yield (
                "error",
                call.lineno,
                f".{call.node.attr}() is refused: values can't be changed; build new ones with + or a namespace",
            )


def _unknown_names(tree: nodes.Template, special_tokens: Collection[str]) -> Iterator[Problem]:
    # A name that is set in some branch only counts as undeclared, and one that is tested may be missing.
    assigned = {node.name for node in tree.find_all(nodes.Name) if node.ctx == "store"}
    tested = {
        test.node.name
        for test in tree.find_all(nodes.Test)
        if isinstance(test.node, nodes.Name) and test.name in ("defined", "undefined")
    }
    unknown = meta.find_undeclared_variables(tree) - SET_BY_REQUESTS - set(special_tokens) - assigned - tested
    called = {call.node.name for call in tree.find_all(nodes.Call) if isinstance(call.node, nodes.Name)}
    for name in sorted(unknown):
        line = _first_line(tree, lambda node, name=name: node.name == name)  # type: ignore[misc]
        if name in called:
            yield (
                "error",
                line,
                f"{name[:60]}() isn't given; functions are raise_exception, strftime_now, range, dict and namespace",
            )
        elif name.endswith("_token"):
            yield "warning", line, f"the tokenizer has no {name[:60]}; nothing is printed for it"
        else:
            yield "warning", line, f"{name[:60]} is only set if a request has it in chat_template_kwargs"


def _first_line(tree: nodes.Template, matches: Callable[[nodes.Name], bool]) -> int:
    return min((node.lineno for node in tree.find_all(nodes.Name) if matches(node)), default=1)
