"""The tokenizer of a model, a tab of its page: cut a text into tokens, search the vocabulary, see unused rows."""

from __future__ import annotations

from typing import Any, ClassVar

from django.urls import reverse

from inference.errors import BlazrError, InvalidRequest
from inference.pages import tokens
from inference.serving.served_models import served_model
from inference.serving.tokenizers import tokenizer_cache
from inference.text.tokenisation.tokenizer import Tokenizer
from models_registry.api.views import checkpoint_inspection
from models_registry.model_page import ModelPage
from models_registry.models import Checkpoint
from models_registry.page_numbers import number_of

NUM_ROWS = 50
EXAMPLE = "Tokenizers cut text into pieces: naïve, 東京, 🙂\n\tand 3.14159."


class TokenizerPage(ModelPage):
    """The tab of a model's tokenizer."""

    regions: ClassVar[dict[str, tuple[str, str]]] = {
        f"{name}-region": (f"registry/model/_{name}.html", "_tokenizer_tab") for name in ("tokens", "vocabulary")
    }

    def current_tab(self) -> str:
        """Return this page's tab."""
        return "tokenizer"

    def base(self, checkpoint: Checkpoint) -> str:
        """Return the address of the page that has the other tabs."""
        return reverse("model", args=[checkpoint.pk])

    def _tokenizer_tab(self, checkpoint: Checkpoint) -> dict[str, Any]:
        query = self.request.GET
        kind = query.get("kind", "all")
        context: dict[str, Any] = {
            "checkpoint": checkpoint,
            "text": query.get("text", EXAMPLE),
            "max_chars": tokens.MAX_TEXT_CHARS,
            "parse_special": query.get("special") == "1",
            "add_special_tokens": query.get("bos") == "1",
            "q": query.get("q", "")[: tokens.MAX_QUERY_CHARS],
            "kind": kind if kind in tokens.KINDS else "all",
            "kinds": tokens.KINDS,
        }
        try:
            with tokenizer_cache().borrowed(served_model(checkpoint)) as text:
                return context | self._read(text.tokenizer, context, checkpoint)
        except BlazrError as error:
            return context | {"problem": error.message}

    def _read(self, tokenizer: Tokenizer, context: dict[str, Any], checkpoint: Checkpoint) -> dict[str, Any]:
        if not tokenizer.has_text:
            return {"problem": "This model has no known tokenizer: it reads and writes token ids only."}
        offset = number_of(self.request.GET.get("offset"), 0, 0, 1 << 31)
        page = tokens.search(tokenizer, context["q"], context["kind"], offset=offset, limit=NUM_ROWS)
        last = offset + len(page.tokens)
        ranges = tokens.unused_ranges(tokenizer)
        num_unused = len(tokenizer.invalid_token_ids)
        return {
            "tokenizer": tokenizer,
            **_cut(tokenizer, context),
            "page": page,
            "first": offset + 1,
            "last": last,
            "back": max(0, offset - NUM_ROWS) if offset else None,
            "next": last if last < page.count else None,
            "num_unused": num_unused,
            "unused_bytes": num_unused * _row_bytes(checkpoint),
            "ranges": ranges[: tokens.MAX_RANGES_SHOWN],
            "num_more_ranges": max(0, len(ranges) - tokens.MAX_RANGES_SHOWN),
        }


def _cut(tokenizer: Tokenizer, context: dict[str, Any]) -> dict[str, Any]:
    """Return the tokens of the text, or why it isn't cut."""
    try:
        if len(context["text"]) > tokens.MAX_TEXT_CHARS:
            raise InvalidRequest(
                f"text has {len(context['text']):,} characters; this page cuts at most {tokens.MAX_TEXT_CHARS:,}. "
                "POST /tokenize takes longer ones.",
                param="text",
            )
        return {
            "cut": tokens.cut(
                tokenizer,
                context["text"].replace("\r\n", "\n"),  # as forms send line ends
                add_special_tokens=context["add_special_tokens"],
                parse_special=context["parse_special"],
            )
        }
    except BlazrError as error:
        return {"text_problem": error.message}


def _row_bytes(checkpoint: Checkpoint) -> int:
    """Return the bytes of a row of the embedding in its file; 0: not known."""
    inspection = checkpoint_inspection(checkpoint)
    pieces = inspection.spec.parameters["embed_tokens.weight"].pieces
    info = inspection.tensors.get(pieces[0].name)
    return 0 if info is None or not info.shape or not info.shape[0] else (info.end - info.begin) // info.shape[0]
