"""Tool calls and reasoning in a model's text: formats, parsers, prompts. Knows neither Django nor torch.

A model writes its calls and its thinking as text in a format of its own. ``OutputParser`` reads that text as it
comes and says what it is::

    from inference.text.tool_calls.parser import OutputParser, parse_output

    parser = OutputParser(plan.output, in_reasoning=prompt_state.in_reasoning)
    for text in deltas:
        for event in parser.push(text): ...
    for event in parser.finish(): ...

Events (``inference.text.tool_calls.events``), in the order of the text:

    ReasoningDelta(text)                     thinking
    ContentDelta(text)                       the text
    ToolCallStart(index, call_id, name)      a call begins; index counts from 0
    ToolCallDelta(index, arguments)          a piece of its arguments' JSON
    ToolCallEnd(index)                       it is complete

However the text is cut into pieces, the events emit the same (only the cuts between deltas differ). Text
that may still become a call is held back until that is decided. What looks like a call and can't be read stays
content, marks included. Once a call's arguments have begun, all that follows up to the call's end mark belongs to
them, valid JSON or not. Space around calls and around a thinking section is left out.

``parse_output(output, text)`` reads a whole text at once into a ``ParsedMessage``. ``plan.output`` (an
``OutputFormat``) is set when the model is known, by ``ServedModel.resolved``; None: the text is the content.
"""
