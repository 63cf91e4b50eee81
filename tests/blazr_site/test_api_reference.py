"""docs/api-reference.md is what ``python -m blazr_site.api_reference`` prints, and says what the document says."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from blazr_site.api_docs import openapi_document, operations
from blazr_site.api_reference import PAGES_ONLY, reference
from tests.checks.documents import ROOT

PAGE = ROOT / "docs" / "api-reference.md"


@pytest.fixture(scope="module")
def page() -> str:
    return reference()


def test_the_committed_page_is_the_printed_one(page):
    assert PAGE.read_text() == page, "run python -m blazr_site.api_reference > docs/api-reference.md"


def test_every_operation_has_a_section_with_its_members(page):
    sections = {text.partition("\n")[0]: text for text in page.split("\n### ")[1:]}
    for operation in operations(openapi_document()):
        if operation.path.startswith(PAGES_ONLY):
            assert f"{operation.method} {operation.path}" not in sections
            continue
        section = sections[f"{operation.method} {operation.path}"]
        for field in (*operation.body, *operation.parameters):
            is_shown = f"| `{field.name}` |" in section or f"{{{field.name}}}" in operation.path
            assert is_shown or field.name == "Idempotency-Key", operation.path


def test_every_member_of_a_body_has_a_meaning():
    for operation in operations(openapi_document()):
        if not operation.path.startswith(PAGES_ONLY):
            for field in operation.body:
                assert field.text, (operation.path, field.name)


def test_every_row_has_the_cells_of_its_table(page):
    tables = [part for part in page.split("\n\n") if part.startswith("| ")]
    assert len(tables) > 30
    for table in tables:
        counts = {line.replace("\\|", "").count("|") for line in table.splitlines()}
        assert len(counts) == 1, table


def test_the_command_prints_the_page_without_torch(page):
    code = (
        "import runpy, sys; runpy.run_module('blazr_site.api_reference', run_name='__main__'); "
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=dict(os.environ), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == page
