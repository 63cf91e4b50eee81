"""Readers of tool calls, one per format.

Each begins at the mark of a call and ends behind it. A call's start is held back until its arguments begin like
JSON; up to there a text that can't be read becomes content as it was. From there on nothing is taken back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping

from inference.text.tool_calls.call_parts import Call, CallParts
from inference.text.tool_calls.json_reader import BadJSON, read_value
from inference.text.tool_calls.source import Reader
from inference.values.output_format import (
    KIMI_FUNCTION,
    LIST_TAGS,
    MISTRAL_ARGS,
    MISTRAL_CALL_ID,
    MISTRAL_CALLS,
    PYTHON_TAG,
    SECTION_MARKS,
    TAGS,
    XML_FUNCTION,
    XML_FUNCTION_END,
    XML_PARAMETER,
    XML_PARAMETER_END,
    SectionMarks,
    ToolFormat,
)

CALL_STARTS: Mapping[ToolFormat, tuple[str, ...]] = {
    "hermes": (TAGS["hermes"][0],),
    "agent": (TAGS["agent"][0],),
    "llama3_json": (PYTHON_TAG,),
    "mistral": (MISTRAL_CALLS,),
    "deepseek": (SECTION_MARKS["deepseek"].begin,),
    "kimi": (SECTION_MARKS["kimi"].begin,),
    "nemotron": (LIST_TAGS["nemotron"][0],),
    "jamba": (LIST_TAGS["jamba"][0],),
    "qwen_xml": (TAGS["qwen_xml"][0],),
}
"""Marks that begin one call or several."""
_SURROGATE = re.compile("[\ud800-\udfff]")
_NUMBER = re.compile(r":\d+\Z")
_CONSTANTS = {"True": "true", "False": "false", "None": "null"}


class CallReaders(CallParts):
    """The readers of one text, by format."""

    def read(self) -> Reader[bool]:
        """Read from a mark on; False: it was no call, and has been given out as content."""
        match self.output.tools:
            case "hermes" | "agent" | "qwen_xml" as name:
                return (yield from self._read_tagged(*TAGS[name]))
            case "nemotron" | "jamba" as name:
                return (yield from self._read_list_tagged(*LIST_TAGS[name]))
            case "mistral":
                return (yield from self._read_mistral())
            case "deepseek" | "kimi" as name:
                return (yield from self._read_section(SECTION_MARKS[name]))
            case _:
                return (yield from self._read_python_tag())

    def read_bare(self) -> Reader[bool]:
        """Calls of Llama 3 that have no mark: JSON objects, perhaps with semicolons between them."""
        return (yield from self._read_objects(self.output.tool_names))

    # --- formats -------------------------------------------------------------------------------

    def _read_tagged(self, start: str, end: str) -> Reader[bool]:
        self.source.mark()
        self.source.pos += len(start)
        body = self.read_object(self.call())
        if self.output.tools == "qwen_xml" and (yield from self.source.skip_space()) == "<":
            body = self._read_xml()
        if not (yield from self.attempt(body, (end,))):
            return False
        yield from self.source.skip_space()
        yield from self.source.take(end)
        return True

    def _read_xml(self) -> Reader[Call]:
        """``<function=name>``, then a ``<parameter=key>`` for each argument; a value goes out when it has ended."""
        source = self.source
        if not (yield from source.take(XML_FUNCTION)):
            raise BadJSON
        call = self.call((yield from self.read_up_to(">")))
        call.add("{")
        is_first = True
        while True:
            yield from source.skip_space()
            if not (yield from source.take(XML_PARAMETER)):
                break
            key = yield from self.read_up_to(">")
            text = yield from self.read_until(XML_PARAMETER_END)
            is_json = f"{call.name}.{key}" in self.output.json_parameters
            value = _json_of(text.removeprefix("\n").removesuffix("\n"), is_json=is_json)
            call.add(f"{'' if is_first else ', '}{json.dumps(key, ensure_ascii=False)}: {value}")
            call.mark_begun()
            is_first = False
        if not (yield from source.take(XML_FUNCTION_END)):
            raise BadJSON
        call.add("}")
        call.has_arguments = True
        call.mark_begun()
        return call

    def _read_mistral(self) -> Reader[bool]:
        source = self.source
        source.mark()
        source.pos += len(MISTRAL_CALLS)
        char = yield from source.skip_space()
        if char == "[":
            return (yield from self._read_list((MISTRAL_CALLS,)))
        body = self.read_object(self.call()) if char == "{" else self._read_named()
        return (yield from self.attempt(body, (MISTRAL_CALLS,)))

    def _read_list_tagged(self, start: str, end: str) -> Reader[bool]:
        source = self.source
        source.mark()
        source.pos += len(start)
        if (yield from source.skip_space()) != "[":
            self.give_up()
            return False
        if not (yield from self._read_list((end,))):
            return False
        yield from source.skip_space()
        yield from source.take(end)
        return True

    def _read_list(self, ends: tuple[str, ...]) -> Reader[bool]:
        """``[{…}, {…}]``; the source is marked where the text begins that an unreadable first call goes back to."""
        source = self.source
        source.pos += 1
        is_first = True
        while (yield from source.skip_space()) != "]" or is_first:
            if not is_first:
                source.mark()
            if not (yield from self.attempt(self.read_object(self.call()), ends)):
                return not is_first
            is_first = False
            if (yield from source.skip_space()) != ",":
                break
            source.pos += 1
        yield from source.take("]")
        return True

    def _read_named(self) -> Reader[Call]:
        """``name[ARGS]{…}``, with ``[CALL_ID]id`` before the arguments in some versions."""
        source = self.source
        call = self.call((yield from self.read_name()))
        if (yield from source.take(MISTRAL_CALL_ID)):
            yield from self.read_name()
        yield from source.take(MISTRAL_ARGS)
        yield from self.read_arguments(call)
        return call

    def _read_section(self, marks: SectionMarks) -> Reader[bool]:
        source = self.source
        source.mark()
        source.pos += len(marks.begin)
        is_first = True
        while True:
            yield from source.skip_space()
            if not is_first:
                source.mark()
            if not (yield from source.take(marks.call)):
                break
            if not (yield from self.attempt(self._read_section_call(marks), (marks.call_end, marks.end))):
                return not is_first
            is_first = False
            yield from source.skip_space()
            yield from source.take("```")
            yield from source.skip_space()
            yield from source.take(marks.call_end)
        if is_first:
            self.give_up()
            return False
        source.release()
        yield from source.take(marks.end)
        return True

    def _read_section_call(self, marks: SectionMarks) -> Reader[Call]:
        """A name, a mark and an object: ``functions.name:0`` (Kimi), ``name`` (DeepSeek V3.1).

        DeepSeek V3 and R1 write ``function``, the mark, the name, a line break and a fenced block.
        """
        source = self.source
        head = yield from self.read_up_to(marks.arguments)
        if self.output.tools == "kimi":
            call = self.call(_NUMBER.sub("", head.removeprefix(KIMI_FUNCTION)))
        elif (yield from source.skip_space()) == "{":
            call = self.call(head)
        else:
            call = self.call((yield from self.read_up_to("\n")))
            yield from source.skip_space()
            yield from source.take("```json")
        yield from self.read_arguments(call)
        return call

    def _read_python_tag(self) -> Reader[bool]:
        source = self.source
        source.mark()
        source.pos += len(PYTHON_TAG)
        if (yield from source.skip_space()) == "{":
            return (yield from self._read_objects(None, is_marked=True))
        return (yield from self.attempt(self._read_python_call(), ()))

    def _read_python_call(self) -> Reader[Call]:
        """``name.call(key="value", …)``, Llama's form for built-in tools; values as in JSON."""
        source = self.source
        name = yield from self.read_name(stop=".")
        if not (yield from source.take(".call(")):
            raise BadJSON
        call = self.call(name)
        arguments: list[str] = []
        while (yield from source.skip_space()) != ")":
            if arguments:
                if not (yield from source.take(",")):
                    raise BadJSON
                arguments.append(", ")
                yield from source.skip_space()
            arguments.append(json.dumps((yield from self.read_name())) + ": ")
            yield from source.skip_space()
            if not (yield from source.take("=")):
                raise BadJSON
            yield from source.skip_space()
            yield from read_value(source, arguments.append)
        source.pos += 1
        call.add("{" + "".join(arguments) + "}")
        call.has_arguments = True
        return call

    def _read_objects(self, names: Collection[str] | None, *, is_marked: bool = False) -> Reader[bool]:
        source = self.source
        is_first = True
        while True:
            if not (is_first and is_marked):
                source.mark()
            if not is_first:
                yield from source.skip_space()
                yield from source.take(";")
                if (yield from source.skip_space()) != "{":
                    break
            if not (yield from self.attempt(self.read_object(self.call(), names), ())):
                return not is_first
            is_first = False
        source.release()
        return True


def _json_of(text: str, *, is_json: bool) -> str:
    """A value as JSON text: read as JSON (or as Python's constants) where it should be, a string otherwise."""
    if is_json:
        try:
            value = json.loads(_CONSTANTS.get(text.strip(), text), parse_constant=_refuse)
            return _SURROGATE.sub("\ufffd", json.dumps(value, ensure_ascii=False))
        except (ValueError, RecursionError):
            pass  # the client's own check names it
    return json.dumps(text, ensure_ascii=False)


def _refuse(constant: str) -> None:
    """NaN and the infinities are Python's, not JSON's."""
    raise ValueError(constant)
