"""Forms with a file: wrong ones, incomplete ones, large ones."""

from __future__ import annotations

import pytest

from tests.inference.api.openai.test_file_views import empty_store, error_of, stored, upload  # noqa: F401 - a fixture for all


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"purpose": "fine-tune"}, "purpose"),
        ({"purpose": []}, "purpose"),
        ({"colour": "red"}, "colour"),
        ({"expires_after[anchor]": "created_at", "expires_after[seconds]": "10"}, "expires_after.seconds"),
        ({"expires_after[anchor]": "tomorrow", "expires_after[seconds]": "3600"}, "expires_after.anchor"),
        ({"expires_after[seconds]": "-1"}, "expires_after.anchor"),
    ],
)
def test_wrong_forms_leave_nothing(http, fields, param):
    assert error_of(upload(http, **fields), 400)["param"] == param
    assert stored() == set()


def test_forms_without_one_whole_file(http):
    form = {"data": {"purpose": "batch"}}
    assert error_of(http.post("/v1/files", **form, files={"other": ("a", b"x")}), 400)["param"] == "other"
    for no_file in ({"purpose": (None, "batch")}, {"purpose": (None, "batch"), "file": (None, "text")}):
        assert error_of(http.post("/v1/files", files=no_file), 400)["param"] == "file"
    two = [("file", ("a", b"x")), ("file", ("b", b"y"))]
    assert "several" in error_of(http.post("/v1/files", **form, files=two), 400)["message"]
    assert "empty" in error_of(upload(http, b""), 400)["message"]
    error_of(http.post("/v1/files", json={"purpose": "batch"}), 415)
    kind = {"Content-Type": "multipart/form-data; boundary=x"}
    error_of(http.post("/v1/files", content=b"--x\r\nrubbish", headers=kind), 400)
    error_of(http.post("/v1/files", content=b"", headers={"Content-Type": "multipart/form-data"}), 400)
    assert stored() == set()


def test_a_file_over_the_limit_is_refused_and_removed(http, settings):
    settings.BLAZR_MAX_FILE_BYTES = 100
    assert upload(http, b"x" * 100).status_code == 200
    error = error_of(upload(http, b"x" * 101), 413)
    assert (error["param"], "100 bytes" in error["message"]) == ("file", True)
    assert len(stored()) == 1
