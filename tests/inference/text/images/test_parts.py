"""Pictures as clients write them: data URLs and ids of files are read, nothing is fetched."""

import socket

import pytest
from PIL import Image

from inference.errors import InvalidRequest, UnsupportedFeature
from inference.text.images.parts import is_client_image, read_client_image, with_read_images
from tests.inference.text.images.pictures import encoded

DATA = encoded(Image.new("RGB", (30, 20)))
URL = f"data:image/png;base64,{DATA}"


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": URL}},
        {"type": "image_url", "image_url": URL},
        {"type": "image_url", "image_url": {"url": f"DATA:;BASE64,{DATA}", "detail": "high"}},
    ],
)
def test_data_urls(part):
    assert is_client_image(part)
    assert read_client_image(part, "x") == {"type": "image", "data": DATA, "width": 30, "height": 20}


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"file_id": "file-1"}},
        {"type": "image_file", "image_file": {"file_id": "file-1", "detail": None}},
    ],
)
def test_files(part):
    assert read_client_image(part, "x") == {"type": "image", "file_id": "file-1"}


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/x.png", "https://example.com/x.png", "file:///etc/passwd", "ftp://x/y", "//x/y",
        "/etc/passwd", "http://169.254.169.254/latest", "gopher://x", "", "image.png",
    ],
)  # fmt: skip
def test_nothing_is_fetched(url, monkeypatch):
    monkeypatch.setattr(socket, "socket", lambda *_, **__: pytest.fail("a socket was opened"))
    monkeypatch.setattr("builtins.open", lambda *_, **__: pytest.fail("a file was opened"))
    with pytest.raises(UnsupportedFeature, match="isn't fetched; send the image itself as a data URL") as caught:
        read_client_image({"type": "image_url", "image_url": {"url": url}}, "x")
    assert caught.value.http_status == 400 and "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"type": "image_url"}, "an image_url part has the member image_url, an object of url or file_id"),
        ({"type": "image_url", "image_url": {"url": URL}, "more": 1}, "an image_url part has the member image_url"),
        ({"type": "image_url", "image_url": {"url": URL, "size": 1}}, "an image_url part has the member image_url"),
        ({"type": "image_url", "image_url": {}}, "names its image by url or file_id, a string"),
        ({"type": "image_url", "image_url": {"url": URL, "file_id": "file-1"}}, "names its image by url or file_id"),
        ({"type": "image_file", "image_file": {"url": URL}}, "names its image by file_id"),
        ({"type": "image_url", "image_url": {"url": URL, "detail": "low"}}, "detail is 'low'; images are always read"),
        ({"type": "image_file", "image_file": {"file_id": "../x"}}, "it must be the id of an uploaded file"),
        ({"type": "image_url", "image_url": {"url": "data:image/png,abc"}}, "it must be data:image/png;base64,"),
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64,%%"}}, "the image's data isn't Base64"),
    ],
)
def test_forms_that_are_refused(part, message):
    with pytest.raises(InvalidRequest) as caught:
        read_client_image(part, "messages.0.content.1")
    assert message in caught.value.message and caught.value.param == "messages.0.content.1"


def test_messages_keep_everything_else():
    mark = {"type": "ephemeral"}
    messages = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": [{"type": "image_url", "image_url": URL, "cache_control": mark}, "text"]},
    ]
    read = with_read_images(messages)
    assert read[0] == messages[0] and read[1]["content"][1] == "text"
    assert read[1]["content"][0]["cache_control"] == mark and read[1]["content"][0]["width"] == 30
