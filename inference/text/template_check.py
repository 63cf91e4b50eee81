"""Check a chat template that a person wrote: find its problems, and render a sample conversation.

All of it runs in the template's sandbox, under the limits of every rendering.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from inference.errors import BlazrError, InvalidChatTemplate, InvalidRequest
from inference.text.tokenisation.chat_template import ChatTemplate
from inference.text.tool_calls.prompting import in_hermes_form
from inference.values.output_format import TAGS, uses_tools
from inference.values.tokenizer_spec import MAX_TEMPLATE_CHARS

MAX_PREVIEW_TOKENS = 1024
"""Context for which the sample is rendered; a longer rendering is an error."""

SYSTEM = {"role": "system", "content": "You are a ship's navigator."}
USER = {"role": "user", "content": "Which star is over the pole?"}
TURNS: list[dict[str, Any]] = [
    SYSTEM,
    USER,
    {"role": "assistant", "content": "Polaris, less than a degree away."},
    {"role": "user", "content": "How warm is it in Tromsø?"},
]
TOOL_TURNS: list[dict[str, Any]] = [
    *TURNS,
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {
                "id": "call00001",
                "type": "function",
                "function": {"name": "get_weather", "arguments": '{"city": "Tromsø"}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "call00001", "name": "get_weather", "content": "-4 degrees"},
]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Look up the weather of a city.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]


@dataclass(frozen=True, slots=True)
class TemplateProblem:
    """A problem of a template.

    Attributes:
        level: An error means that the template can't be used; a warning, that it may not do what was meant.
        line: 0: of no single line.
    """

    level: Literal["error", "warning"]
    message: str
    line: int = 0

    def __str__(self) -> str:
        return f"line {self.line}: {self.message}" if self.line else self.message


@dataclass(frozen=True, slots=True)
class TemplateCheck:
    """What a check found.

    Attributes:
        preview: The sample conversation as the model would get it, as much of it as the template takes; None: the
            template renders nothing.
    """

    problems: tuple[TemplateProblem, ...]
    preview: str | None

    @property
    def errors(self) -> list[str]:
        return [str(problem) for problem in self.problems if problem.level == "error"]

    @property
    def warnings(self) -> list[str]:
        return [str(problem) for problem in self.problems if problem.level == "warning"]

    def to_dict(self) -> dict[str, Any]:
        return {"problems": [asdict(problem) for problem in self.problems], "preview": self.preview}


def check_template(source: str, special_tokens: Mapping[str, str]) -> TemplateCheck:
    """Check a template, and render a conversation of system, user, assistant, user and a tool call with it.

    Args:
        special_tokens: ``bos_token`` and so on, as the tokenizer has them.
    """
    if len(source) > MAX_TEMPLATE_CHARS:
        text = f"the template has {len(source)} characters; the limit is {MAX_TEMPLATE_CHARS}"
        return TemplateCheck((TemplateProblem("error", text),), None)
    template = ChatTemplate(source, special_tokens=special_tokens, control_tokens=(), max_model_len=MAX_PREVIEW_TOKENS)
    try:
        return _Check(source, template).run()
    finally:
        template.close()


def require_usable(check: TemplateCheck) -> None:
    """Refuse a template with errors.

    Raises:
        InvalidRequest: Names the first error, and how many more there are.
    """
    if check.errors:
        more = len(check.errors) - 1
        rest = f" ({more} more error{'s' if more > 1 else ''})" if more else ""
        raise InvalidRequest(f"The chat template can't be used: {check.errors[0]}{rest}.", param="chat_template")


class _Check:
    """One check: collects problems."""

    def __init__(self, source: str, template: ChatTemplate) -> None:
        self._source = source
        self._template = template
        self._problems: list[TemplateProblem] = []

    def run(self) -> TemplateCheck:
        try:
            found = self._template.find_problems()
        except InvalidChatTemplate as error:
            self._add("error", _reason(error))
            return TemplateCheck(tuple(self._problems), None)
        for level, line, text in found:
            self._add("error" if level == "error" else "warning", text, line)
        preview = self._render_conversations()
        return TemplateCheck(tuple(self._problems), preview)

    def _render_conversations(self) -> str | None:
        num_known = len(self._problems)
        alone = self._try([USER], "error", "it can't render a message of the user")
        if alone is None:
            if any(problem.level == "error" for problem in self._problems[:num_known]):
                del self._problems[num_known:]  # a consequence of what is known already
            return None
        if USER["content"] not in alone:
            self._add("error", "it loses the messages of the user")
        turns = self._try(TURNS, "warning", "it refuses a conversation with a system message")
        if turns is None:
            turns = self._try(TURNS[1:], "warning", "it refuses a conversation of several turns") or alone
        elif SYSTEM["content"] not in turns:
            self._add("warning", "it loses the system message")
        if turns != alone and TURNS[2]["content"] not in turns:
            self._add("warning", "it loses earlier answers of the assistant")
        if self._try([USER], "warning", "it fails without add_generation_prompt", prompt=False) == alone:
            self._add(
                "warning",
                "it ignores add_generation_prompt: the model isn't told to answer, unless the end of a user's message "
                "says so",
            )
        return self._render_tools(has_system=SYSTEM["content"] in turns) or turns

    def _render_tools(self, *, has_system: bool) -> str | None:
        messages = TOOL_TURNS if has_system else TOOL_TURNS[1:]
        if not uses_tools(self._source):
            # As the server writes it for such a template.
            messages = in_hermes_form(messages, TOOLS, TAGS["hermes"])
            return self._try(messages, "warning", "it has no tools, and refuses them in the system message")
        text = self._try(messages, "warning", "it refuses a tool call", template_kwargs={"tools": TOOLS})
        if text is not None and "get_weather" not in text:
            self._add("warning", "it loses tools and their calls")
        if text is not None and TOOL_TURNS[-1]["content"] not in text:
            self._add("warning", "it loses the results of tools")
        return text

    def _try(
        self,
        messages: list[dict[str, Any]],
        level: Literal["error", "warning"],
        what: str,
        *,
        prompt: bool = True,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> str | None:
        """The rendering; None: it failed, and the reason is a problem."""
        try:
            pieces = self._template.render(messages, add_generation_prompt=prompt, template_kwargs=template_kwargs)
        except BlazrError as error:
            self._add(level, f"{what}: {_reason(error)}")
            return None
        return "".join(text for text, _ in pieces)

    def _add(self, level: Literal["error", "warning"], text: str, line: int = 0) -> None:
        self._problems.append(TemplateProblem(level, text, line))


def _reason(error: BlazrError) -> str:
    return error.message.removeprefix("the chat template failed: ").removesuffix(".")
