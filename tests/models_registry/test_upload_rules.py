"""What may be uploaded is decided before the first byte."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.errors import BlazrError, InvalidRequest, RequestTooLarge, UnsupportedFormat
from models_registry.upload_rules import MAX_FILES, DeclaredFile, check_declaration

WEIGHTS = DeclaredFile("model.safetensors", 100)
LIMIT = 1 << 40


def test_a_checkpoint_passes() -> None:
    names = ["config.json", "tokenizer.json", "model.safetensors.index.json", "x.tiktoken", "chat_template.jinja"]
    files = [WEIGHTS, *(DeclaredFile(name, 10) for name in names)]
    assert check_declaration(files, max_bytes=LIMIT) == 150


@pytest.mark.parametrize(
    "name",
    [
        "../model.safetensors",
        "a/model.safetensors",
        "a\\model.safetensors",
        "/etc/model.safetensors",
        "model..safetensors",
        ".safetensors",
        "model\0.safetensors",
        "model\n.safetensors",
        "model\u202esrosnetefas.safetensors",
        "modél.safetensors",
        "m" * 2000 + ".safetensors",
        "",
    ],
)
def test_hostile_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match="file name"):
        check_declaration([DeclaredFile(name, 10)], max_bytes=LIMIT)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.PT", "weights.ckpt", "a.pkl", "x.pth"])
def test_pickles_are_refused_by_name(name: str) -> None:
    with pytest.raises(UnsupportedFormat, match="pickle"):
        check_declaration([WEIGHTS, DeclaredFile(name, 10)], max_bytes=LIMIT)


def test_ggjt_files_are_taken_by_another_name() -> None:
    assert check_declaration([DeclaredFile("llama.ggml", 10)], max_bytes=LIMIT) == 10
    with pytest.raises(UnsupportedFormat, match=r"if it is a ggjt file, rename it to end in \.ggml"):
        check_declaration([DeclaredFile("llama.ggmlv3.q4_0.bin", 10)], max_bytes=LIMIT)


@pytest.mark.parametrize("name", ["modeling_custom.py", "run.sh", "model.onnx", "a.zip", "index.html"])
def test_other_kinds_are_refused(name: str) -> None:
    with pytest.raises(UnsupportedFormat, match="not a file of a checkpoint"):
        check_declaration([WEIGHTS, DeclaredFile(name, 10)], max_bytes=LIMIT)


@pytest.mark.parametrize(
    ("files", "error", "words"),
    [
        ([], InvalidRequest, "no files"),
        ([DeclaredFile("config.json", 10)], UnsupportedFormat, "no .safetensors"),
        ([DeclaredFile("adapter_model.safetensors", 10)], UnsupportedFormat, "an adapter and no model"),
        ([WEIGHTS, WEIGHTS], InvalidRequest, "twice"),
        ([WEIGHTS, DeclaredFile("MODEL.safetensors", 10)], InvalidRequest, "twice"),
        ([DeclaredFile("model.safetensors", 0)], InvalidRequest, "empty"),
        ([DeclaredFile("model.safetensors", -1)], InvalidRequest, "empty"),
        ([WEIGHTS, DeclaredFile("config.json", (1 << 20) + 1)], RequestTooLarge, "limit"),
        ([DeclaredFile("model.safetensors", LIMIT + 1)], RequestTooLarge, "BLAZR_MAX_UPLOAD_BYTES"),
        ([DeclaredFile("model.safetensors", 1 << 70)], RequestTooLarge, "limit"),
        ([DeclaredFile(f"{n}.safetensors", 1) for n in range(MAX_FILES + 1)], RequestTooLarge, "at most"),
        ([DeclaredFile("model.safetensors", 10, "ABC")], InvalidRequest, "hexadecimal"),
    ],
)
def test_impossible_declarations_are_refused(files: list, error: type, words: str) -> None:
    with pytest.raises(error, match=words):
        check_declaration(files, max_bytes=LIMIT)


@given(st.lists(st.builds(DeclaredFile, st.text(max_size=40), st.integers(), st.text(max_size=70)), max_size=5))
def test_arbitrary_declarations_pass_or_get_one_of_our_errors(files: list[DeclaredFile]) -> None:
    try:
        assert check_declaration(files, max_bytes=LIMIT) <= LIMIT
    except BlazrError as error:
        assert 400 <= error.http_status < 500
