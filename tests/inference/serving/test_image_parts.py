"""Pictures of a plan: files become bytes, headers become tokens, and the model's context bounds them."""

import base64
import dataclasses

import pytest
from PIL import Image

from inference.errors import InvalidRequest, NotFound, PromptTooLong
from inference.files.services import file_create
from inference.files.store import FileWriter
from inference.serving import image_parts
from inference.serving.image_parts import names_image_files, plan_with_images
from inference.text.images.image_file import read_part
from inference.values.images import ImageInput, ImageLayout, ImagePrompt
from inference.values.limits import estimate_prompt_tokens
from inference.values.plan import GenerationPlan
from inference.values.sampling_params import SamplingParams
from inference.values.served_model import ServedModel
from inference.values.tokenizer_spec import TokenizerSpec
from tests.inference.rows import TEMPLATE
from tests.inference.text.images.pictures import encoded

pytestmark = pytest.mark.django_db(transaction=True)

IMAGES = ImageInput(ImageLayout("tiles", 336, 12, 16), ImagePrompt("<|image|>"))
TOKENIZER = TokenizerSpec("builtin", 100331, name="cl100k_base", chat_template=TEMPLATE)
MODEL = ServedModel("id", "tiny", 0, 100331, 8192, TOKENIZER, "1", images=IMAGES)


@pytest.fixture(autouse=True)
def own_store(settings, tmp_path):
    settings.BLAZR_FILES_DIR = tmp_path / "files"


def stored(data: bytes, tenant: str = "a") -> str:
    writer = FileWriter()
    writer.write(data)
    return file_create(writer=writer, filename="p.png", purpose="vision", tenant=tenant, expires_s=None).file_id


def plan(*parts) -> GenerationPlan:
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": list(parts)}]
    return GenerationPlan("chat", "tiny", ({"messages": messages},), SamplingParams())


def test_files_and_headers():
    data = encoded(Image.new("RGB", (1920, 1080)))
    inline, file = read_part(data, "x"), {"type": "image", "file_id": stored(base64.b64decode(data))}
    asked = plan({"type": "text", "text": "what?"}, inline, file)
    assert names_image_files(asked.prompts)
    content = plan_with_images(asked, MODEL, "a").prompts[0]["messages"][1]["content"]
    assert content[1] == content[2] == {**inline, "tokens": 2353}
    assert not names_image_files(plan(inline).prompts)
    assert estimate_prompt_tokens(plan_with_images(plan(inline), MODEL, "a")) == 2353 + 4 + 5


def test_a_plan_without_pictures_is_the_same():
    text = GenerationPlan("completion", "tiny", ({"text": "x"},), SamplingParams())
    assert plan_with_images(text, MODEL, "a") is text


def test_files_of_others_are_not_found():
    file_id = stored(b"secret", tenant="b")
    for other in (file_id, "file-none", "file-\0"):
        with pytest.raises(NotFound, match=r"messages\.1\.content\.0: there is no file with the id"):
            plan_with_images(plan({"type": "image", "file_id": other}), MODEL, "a")


def test_a_file_that_is_no_picture_or_too_large():
    with pytest.raises(InvalidRequest, match=r"messages\.1\.content\.0: this is no image"):
        plan_with_images(plan({"type": "image", "file_id": stored(b"hello")}), MODEL, "a")
    large = stored(b"\x89PNG\r\n\x1a\n" + bytes(11 << 20))
    with pytest.raises(InvalidRequest, match="images may have 10,485,760; scale it down"):
        plan_with_images(plan({"type": "image", "file_id": large}), MODEL, "a")


def test_no_more_files_are_read_than_a_request_may_have(monkeypatch):
    data, read = base64.b64decode(encoded(Image.new("RGB", (8, 8)))) + bytes(6 << 20), []
    monkeypatch.setattr(image_parts, "image_file_read", lambda **values: read.append(values) or data)
    with pytest.raises(InvalidRequest, match="bytes together, at most 16,777,216"):
        plan_with_images(plan(*({"type": "image", "file_id": "file-a"} for _ in range(32))), MODEL, "a")
    assert len(read) == 3


def test_pictures_that_fill_the_context_are_refused_at_once():
    image = read_part(encoded(Image.new("RGB", (1920, 1080))), "x")
    short = dataclasses.replace(MODEL, max_model_len=2353)
    with pytest.raises(PromptTooLong, match="2353 tokens"):
        plan_with_images(plan(image), short, "a")
    with pytest.raises(PromptTooLong, match="4706 tokens"):
        plan_with_images(plan(image, image), dataclasses.replace(MODEL, max_model_len=4096), "a")
