"""Bodies of Ollama's endpoints: options that are known, and those that are refused."""

from __future__ import annotations

import ollama
import pytest

from inference.dialects.ollama.serializers import (
    REFUSED_OPTIONS,
    OllamaChatRequestSerializer,
    OllamaGenerateRequestSerializer,
    OptionsSerializer,
)
from inference.dialects.refusals import REFUSED_ANYWHERE
from inference.errors import InvalidRequest
from inference.values.served_model import ServedModel
from inference.values.tokenizer_spec import TokenizerSpec


def test_every_option_is_known_or_refused():
    known = {*OptionsSerializer().fields, *REFUSED_OPTIONS, *REFUSED_ANYWHERE}
    assert set(ollama.Options.model_fields) <= known


def test_prompts_and_messages_follow_a_state():
    template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    spec = TokenizerSpec("builtin", 100331, name="cl100k_base", chat_template=template)
    served = ServedModel("id", "tiny", 0, 100331, 4096, spec, "1")
    chat = OllamaChatRequestSerializer.shared()
    values = chat.parse({"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "state": "manual"})
    assert (chat.plan(values, served).state, chat.plan(values, served).endpoint) == ("manual", "chat")
    generate = OllamaGenerateRequestSerializer.shared()
    for members, endpoint in (({}, "chat"), ({"raw": True}, "completion")):
        values = generate.parse({"model": "tiny", "prompt": "Hi", "state": "manual", **members})
        plan = generate.plan(values, served)
        assert (plan.state, plan.endpoint) == ("manual", endpoint)


def test_cline_gives_a_context_that_the_model_needn_t_have():
    """32,768 tokens, unless its user sets another number. Ollama takes the model's own context where it is smaller."""
    read = OptionsSerializer.shared().sampling
    assert read({"num_ctx": 32_768, "temperature": 0.5}) == read({"temperature": 0.5}) == {"temperature": 0.5}
    with pytest.raises(InvalidRequest) as caught:
        read({"num_ctx": 0})
    assert caught.value.param == "options.num_ctx"
