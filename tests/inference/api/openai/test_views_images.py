"""Images over HTTP: bad ones are 4xx with one line before any worker sees them, good ones reach it whole."""

import base64

import pytest
from PIL import Image

from tests.inference.rows import make_checkpoint
from tests.inference.text.images.pictures import base64_of, encoded, png_of_size

VISION = {
    "layout": {"_": "ImageLayout", "kind": "tiles", "tile": 336, "tile_tokens": 12, "max_tiles": 16},
    "prompt": {"_": "ImagePrompt", "placeholder": "<|image|>"},
}
DATA = encoded(Image.new("RGB", (1920, 1080), "red"))


@pytest.fixture
def seeing(checkpoint, worker):
    """A second model, which sees."""
    found = make_checkpoint("seeing")
    found.inspection = {**found.inspection, "spec": {"vision": VISION}}
    found.save()
    worker.checkpoint_ids.add(str(found.pk))
    return found


def body(part, model="seeing", **members):
    return {
        "model": model,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}, part]}],
        **members,
    }


def url(data: str) -> dict:
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}


def test_an_image_reaches_the_worker(http, worker, seeing):
    response = http.post("/v1/chat/completions", json=body(url(DATA)))
    assert response.status_code == 200, response.text
    (part,) = [part for part in worker.messages[-1]["prompt"]["messages"][0]["content"] if part["type"] == "image"]
    assert part == {"type": "image", "data": DATA, "width": 1920, "height": 1080, "tokens": 2353}


def test_an_uploaded_file_is_an_image(http, worker, seeing):
    file = base64.b64decode(DATA)
    uploaded = http.post("/v1/files", files={"file": ("a.png", file)}, data={"purpose": "vision"}).json()
    assert uploaded["purpose"] == "vision"
    for part in (
        {"type": "image_file", "image_file": {"file_id": uploaded["id"]}},
        {"type": "image_url", "image_url": {"file_id": uploaded["id"]}},
    ):
        assert http.post("/v1/chat/completions", json=body(part)).status_code == 200
        assert worker.messages[-1]["prompt"]["messages"][0]["content"][1]["data"] == DATA
    source = {"type": "image", "source": {"type": "file", "file_id": uploaded["id"]}}
    asked = {"model": "seeing", "max_tokens": 4, "messages": [{"role": "user", "content": [source]}]}
    assert http.post("/v1/messages", json=asked).status_code == 200
    # A file of lines can't be one of pictures.
    batch = {"input_file_id": uploaded["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    assert http.post("/v1/batches", json=batch).status_code == 400
    http.delete(f"/v1/files/{uploaded['id']}")
    refused = http.post("/v1/chat/completions", json=body(part))
    assert refused.status_code == 404 and "there is no file with the id" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (url(base64_of(b"hello")), "this is no image (5 bytes that begin with 68 65 6c 6c 6f)"),
        (url(base64_of(png_of_size(20_000, 10, 1))), "the image is 20,000 x 10 pixels, at most 16,384 a side are read"),
        (url(base64_of(png_of_size(16_000, 16_000, 1))), "256,000,000 pixels, at most 50,000,000 are decoded"),
        (url("%%%"), "the image's data isn't Base64"),
        ({"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/x.png"}}, "isn't fetched"),
    ],
)
def test_bad_images_are_one_line(http, worker, seeing, part, message):
    before = len(worker.messages)
    response = http.post("/v1/chat/completions", json=body(part))
    error = response.json()["error"]
    assert response.status_code == 400 and error["param"] == "messages.0.content.1"
    assert message in error["message"] and error["message"].startswith("messages.0.content.1: ")
    assert "\n" not in error["message"] and len(worker.messages) == before


def test_a_model_that_reads_text_only_says_so(http, worker):
    response = http.post("/v1/chat/completions", json=body(url(DATA), model="tiny"))
    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith("The model 'tiny' reads text only; leave the images out")


def test_images_belong_to_users(http, worker, seeing):
    asked = {"model": "seeing", "messages": [{"role": "assistant", "content": [url(DATA)]}]}
    response = http.post("/v1/chat/completions", json=asked)
    assert response.status_code == 400 and "images belong to the role user" in response.json()["error"]["message"]


def test_messages_of_anthropic(http, worker, seeing):
    source = {"type": "base64", "media_type": "image/png", "data": DATA}
    content = [
        {"type": "image", "source": source, "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "x"},
    ]
    asked = {"model": "seeing", "max_tokens": 4, "messages": [{"role": "user", "content": content}]}
    assert http.post("/v1/messages", json=asked).status_code == 200
    parts = worker.messages[-1]["prompt"]["messages"][0]["content"]
    assert parts[0]["data"] == DATA and parts[0]["cache_control"] == {"type": "ephemeral"}
    for source, message in (
        ({"type": "base64", "media_type": "image/png", "data": base64_of(b"hello")}, "this is no image"),
        ({"type": "url", "url": "http://127.0.0.1/x.png"}, "is a URL, which isn't fetched"),
        ({"type": "base64", "data": DATA, "more": 1}, "more"),
    ):
        asked["messages"] = [{"role": "user", "content": [{"type": "image", "source": source}]}]
        response = http.post("/v1/messages", json=asked)
        assert response.status_code == 400 and message in response.json()["error"]["message"]
        assert "messages.0.content.0.source" in response.json()["error"]["message"]


def test_chats_of_ollama(http, worker, seeing):
    asked = {"model": "seeing", "stream": False, "messages": [{"role": "user", "content": "Hi", "images": [DATA]}]}
    assert http.post("/api/chat", json=asked).status_code == 200
    parts = worker.messages[-1]["prompt"]["messages"][0]["content"]
    assert [part["type"] for part in parts] == ["image", "text"]
    assert http.post("/api/show", json={"model": "seeing"}).json()["capabilities"][-1] == "vision"
    asked["messages"][0]["images"] = ["aGVsbG8="]
    response = http.post("/api/chat", json=asked)
    assert response.status_code == 400 and "this is no image" in response.json()["error"]


def test_responses(http, worker, seeing):
    part = {"type": "input_image", "image_url": f"data:image/png;base64,{DATA}", "detail": "auto"}
    asked = {"model": "seeing", "input": [{"role": "user", "content": [{"type": "input_text", "text": "x"}, part]}]}
    first = http.post("/v1/responses", json=asked)
    assert first.status_code == 200, first.text
    assert worker.messages[-1]["prompt"]["messages"][0]["content"][1]["tokens"] == 2353
    # The next turn has the picture of the stored one.
    following = {"model": "seeing", "input": "and?", "previous_response_id": first.json()["id"]}
    assert http.post("/v1/responses", json=following).status_code == 200
    assert worker.messages[-1]["prompt"]["messages"][0]["content"][1]["data"] == DATA
    for bad, message in (
        ({"type": "input_image", "image_url": "data:image/png;base64,aGVsbG8="}, "this is no image"),
        ({"type": "input_image", "image_url": "https://example.com/x.png"}, "isn't fetched"),
        ({"type": "input_image"}, "names its image by url or file_id"),
        ({"type": "input_image", "file_id": "file-none"}, "there is no file with the id"),
    ):
        response = http.post("/v1/responses", json={**asked, "input": [{"role": "user", "content": [bad]}]})
        assert response.status_code in (400, 404) and message in response.json()["error"]["message"], response.text
