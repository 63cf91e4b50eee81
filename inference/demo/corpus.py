"""The demo model's text and tokenizer: the help topics that every CPython carries (PSF licence).

Each topic becomes a short exchange, so that the demo model answers a topic's name with its text:

    <|user|>\\nTOPIC\\n<|assistant|>\\nTEXT<|endoftext|>
"""

from __future__ import annotations

import random
import re
import textwrap
from dataclasses import dataclass

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

END_OF_TEXT = "<|endoftext|>"
SPECIAL_TOKENS = (END_OF_TEXT, "<|system|>", "<|user|>", "<|assistant|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>\n{{ message['content'] }}"
    "{{ '<|endoftext|>' if message['role'] == 'assistant' else '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


@dataclass(frozen=True, slots=True)
class Document:
    """One topic of the Python help."""

    topic: str
    text: str


def load_documents(seed: int) -> list[Document]:
    """All topics in a seeded order.

    Raises:
        ModuleNotFoundError: This Python was installed without ``pydoc_data``.
    """
    from pydoc_data.topics import topics

    documents = [Document(topic, as_prose(text)) for topic, text in sorted(topics.items())]
    documents = [document for document in documents if document.text]
    random.Random(seed).shuffle(documents)  # noqa: S311 - a repeatable order, no secret
    return documents


def as_prose(text: str) -> str:
    """The paragraphs of a help page, unwrapped; headings, grammars and code examples left out.

    A model this small reads much better when it need not learn line breaks and tables as well.
    """
    kept: list[str] = []
    for block in re.split(r"\n\s*\n", text):
        lines = textwrap.dedent(block).strip("\n").splitlines()
        prose = " ".join(line.strip() for line in lines)
        is_sentence = prose[:1].isupper() and prose.rstrip(')"').endswith((".", ":", "?"))
        if is_sentence and "::=" not in prose and ">>>" not in prose and len(prose.split()) > 3:
            kept.append(re.sub(r"\s+", " ", prose).replace("::", ":"))
    return "\n".join(kept)


def train_tokenizer(documents: list[Document], vocab_size: int) -> Tokenizer:
    """A byte-level BPE over the corpus with the demo's special tokens first."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((document.text for document in documents), trainer)
    return tokenizer


def encode_documents(tokenizer: Tokenizer, documents: list[Document]) -> list[int]:
    stream: list[int] = []
    for document in documents:
        stream += tokenizer.encode(f"<|user|>\n{document.topic}\n<|assistant|>\n{document.text}{END_OF_TEXT}").ids
    return stream
