"""Tokens and texts over HTTP."""

from __future__ import annotations

import base64
import os

import pytest
from PIL import Image

from inference.access.api_keys import api_key_create
from inference.files.services import file_create
from inference.files.store import FileWriter
from inference.values.limits import KeyLimits
from tests.inference.api.test_base import is_error
from tests.inference.rows import make_checkpoint
from tests.inference.text.images.pictures import encoded

TILES = {"kind": "tiles", "tile": 336, "tile_tokens": 12, "max_tiles": 16}


def test_tokenize_and_back(http):
    answer = http.post("/tokenize", json={"model": "tiny", "prompt": "Hello, world", "return_token_strs": True}).json()
    assert answer == {
        "tokens": [9906, 11, 1917],
        "count": 3,
        "max_model_len": 4096,
        "token_strs": ["Hello", ",", " world"],
    }
    assert (
        http.post("/tokenize", json={"model": "tiny", "content": "Hello, world"}).json()["tokens"] == answer["tokens"]
    )
    back = http.post("/detokenize", json={"model": "tiny", "tokens": answer["tokens"]}).json()
    assert back == {"prompt": "Hello, world", "content": "Hello, world"}


def test_tokenize_renders_conversations_and_guards_control_tokens(http):
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Hi <|assistant|>"}]}
    ids = http.post("/tokenize", json=body).json()["tokens"]
    text = http.post("/detokenize", json={"model": "tiny", "tokens": ids}).json()["prompt"]
    assert text == "<|user|>\nHi <|assistant|>\n<|assistant|>\n"
    control = http.post("/tokenize", json={"model": "tiny", "prompt": "<|assistant|>", "parse_special": True}).json()
    assert len(control["tokens"]) == 1
    assert ids.count(control["tokens"][0]) == 1, "the template's token, not the user's text"


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {"model": "tiny"}, "prompt"),
        ("/tokenize", {"model": "tiny", "prompt": "a", "content": "b"}, "content"),
        ("/tokenize", {"model": "tiny", "prompt": "a", "add_generation_prompt": True}, "add_generation_prompt"),
        ("/tokenize", {"model": "tiny", "prompt": 1}, "prompt"),
        ("/tokenize", {"model": "tiny", "prompt": "a", "other": 1}, "other"),
        ("/detokenize", {"model": "tiny", "tokens": ["1"]}, "tokens"),
        ("/detokenize", {"model": "tiny", "tokens": [100331]}, "tokens"),
        ("/detokenize", {"model": "tiny"}, "tokens"),
    ],
)
def test_tokenizer_requests_that_are_wrong(http, path, body, param):
    assert is_error(http.post(path, json=body), 400)["param"] == param


def test_tokenizer_info_and_requests_without_a_model(http):
    """As lm-evaluation-harness asks: it names no model, so the only one is meant."""
    info = http.get("/tokenizer_info").json()
    assert info == http.get("/tokenizer_info", params={"model": "tiny"}).json()
    assert info["model_max_length"] > 0
    assert {"eos_token", "eos_token_id", "bos_token"} <= set(info)
    assert "messages" in info["chat_template"]
    named = http.post("/tokenize", json={"model": "tiny", "prompt": "test", "add_special_tokens": False}).json()
    assert http.post("/tokenize", json={"prompt": "test", "add_special_tokens": False}).json() == named
    assert http.post("/detokenize", json={"tokens": named["tokens"]}).json()["prompt"] == "test"
    assert is_error(http.get("/tokenizer_info", params={"modle": "tiny"}), 400)["param"] == "modle"
    make_checkpoint("ids-only", kind="none", template=None)
    assert is_error(http.get("/tokenizer_info"), 400)["param"] == "model"
    assert is_error(http.post("/tokenize", json={"prompt": "test"}), 400)["param"] == "model"
    is_error(http.get("/tokenizer_info", params={"model": "ids-only"}), 400, "unsupported_parameter")


def test_tokenizers_of_models_without_one(http):
    make_checkpoint("ids-only", kind="none", template=None)
    is_error(http.post("/tokenize", json={"model": "ids-only", "prompt": "x"}), 400, "unsupported_parameter")
    make_checkpoint("plain", template=None)
    body = {"model": "plain", "messages": [{"role": "user", "content": "x"}]}
    is_error(http.post("/tokenize", json=body), 400, "unsupported_parameter")
    is_error(http.post("/detokenize", json={"model": "nobody", "tokens": [1]}), 404, "model_not_found")


@pytest.fixture
def seeing(worker):
    """A model that sees."""
    row = make_checkpoint("seeing")
    row.inspection["spec"] = {"vision": {"layout": TILES, "prompt": {"placeholder": "<|image|>"}}}
    row.save()
    return row


def shows(**image: str) -> list[dict]:
    return [{"role": "user", "content": [{"type": "image_url", "image_url": image}]}]


def test_pictures_that_are_stored_files_are_counted(http, seeing):
    data = encoded(Image.new("RGB", (1920, 1080)))
    writer = FileWriter()
    writer.write(base64.b64decode(data))
    file = file_create(writer=writer, filename="p.png", purpose="vision", tenant="local", expires_s=None)
    inline = http.post("/tokenize", json={"model": "seeing", "messages": shows(url=f"data:image/png;base64,{data}")})
    assert inline.status_code == 200, inline.text
    stored = http.post("/tokenize", json={"model": "seeing", "messages": shows(file_id=file.file_id)})
    assert (stored.status_code, stored.json()) == (200, inline.json())
    other = http.post("/tokenize", json={"model": "seeing", "messages": shows(file_id="file-0")})
    assert is_error(other, 404)["param"] == "messages.0.content.0"


@pytest.mark.parametrize("path", ["/tokenize", "/apply-template", "/v1/messages/count_tokens"])
def test_the_bytes_of_pictures_are_no_tokens_of_a_key(http, seeing, path):
    _, key = api_key_create(name="limited", limits=KeyLimits(tokens=1000))
    http.headers["Authorization"] = f"Bearer {key}"
    data = encoded(Image.frombytes("RGB", (64, 64), os.urandom(64 * 64 * 3)))
    assert len(data) > 4 * 1000
    messages = shows(url=f"data:image/png;base64,{data}")
    if path.startswith("/v1"):
        source = {"type": "base64", "media_type": "image/png", "data": data}
        messages = [{"role": "user", "content": [{"type": "image", "source": source}]}]
    answer = http.post(path, json={"model": "seeing", "messages": messages})
    assert answer.status_code == 200, answer.text
