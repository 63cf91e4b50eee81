"""Bodies of Ollama's endpoints: options that are known, and those that are refused."""

from __future__ import annotations

import ollama

from inference.dialects.ollama.serializers import REFUSED_OPTIONS, OptionsSerializer
from inference.dialects.refusals import REFUSED_ANYWHERE


def test_every_option_is_known_or_refused():
    known = {*OptionsSerializer().fields, *REFUSED_OPTIONS, *REFUSED_ANYWHERE}
    assert set(ollama.Options.model_fields) <= known
