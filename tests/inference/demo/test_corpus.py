"""The demo's text: seeded order, prose only, and a tokenizer that gives it back."""

from __future__ import annotations

from inference.demo.corpus import END_OF_TEXT, SPECIAL_TOKENS, Document, as_prose, encode_documents, load_documents
from inference.demo.corpus import train_tokenizer as train


def test_the_order_follows_the_seed():
    first, again, other = load_documents(1), load_documents(1), load_documents(2)
    assert first == again
    assert first != other
    assert sorted(document.topic for document in first) == sorted(document.topic for document in other)


def test_headings_grammars_and_examples_are_left_out():
    page = "The heading\n***********\n\n   A sentence that\n   goes on here.\n\n   expr ::= x\n\n   >>> print(1) is it."
    assert as_prose(page) == "A sentence that goes on here."


def test_text_comes_back_from_its_ids():
    documents = [
        Document("if", "The statement is used for choices."),
        Document("while", "It repeats while true."),
    ]
    tokenizer = train(documents, 300)
    ids = encode_documents(tokenizer, documents)
    text = tokenizer.decode(ids, skip_special_tokens=False)
    assert text.count(END_OF_TEXT) == 2
    assert text.startswith("<|user|>\nif\n<|assistant|>\nThe statement is used for choices.")
    assert [tokenizer.token_to_id(token) for token in SPECIAL_TOKENS] == [0, 1, 2, 3]
