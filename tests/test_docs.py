"""README and docs against the code: variables, options, links, folders, endpoints, errors."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import blazr_site.settings  # noqa: F401 - reading them declares the variables
from blazr_site.commands.options import SERVE_OPTIONS, add_serve_arguments
from blazr_site.settings import read
from blazr_site.settings.retired import RETIRED
from inference.api.exception_handler import MethodNotAllowed, UnsupportedMediaType
from inference.api.openai.rerank import RerankRequestSerializer
from inference.api.platform.infill import REFUSED_IN_INFILL, InfillRequestSerializer
from inference.api.platform.tokenize_serializers import (
    ApplyTemplateRequestSerializer,
    DetokenizeRequestSerializer,
    TokenizeRequestSerializer,
)
from inference.dialects import refusals
from inference.dialects.anthropic.serializers import REFUSED_IN_MESSAGES
from inference.dialects.ollama.serializers import REFUSED_OPTIONS
from inference.dialects.openai.embeddings import EmbeddingRequestSerializer
from inference.dialects.openai.requests import ChatRequestSerializer, CompletionRequestSerializer
from inference.dialects.responses.serializers import REFUSED_IN_RESPONSES
from inference.errors import BlazrError, _classes
from inference.records import metrics
from models_registry import uploads  # noqa: F401 - has errors of its own
from tests.checks.documents import ROOT, documents

DOCS = [page for page in documents() if page.parent != ROOT]
PAGES = documents()
API = (ROOT / "docs" / "api.md").read_text()
REFERENCE = (ROOT / "docs" / "api-reference.md").read_text()
OPERATIONS = (ROOT / "docs" / "operations.md").read_text()
CONFIGURATION = (ROOT / "docs" / "configuration.md").read_text()
_NAME = re.compile(r"\bBLAZR_[A-Z0-9_]*[A-Z0-9]\b")
_LINK = re.compile(r"\]\(([^)\s]+)\)")


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def section(text: str, heading: str) -> str:
    """What stands below a heading of level two."""
    return text.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]


def first_cells(text: str) -> set[str]:
    """Names in backticks in the first column of all tables."""
    rows = (line.split(" | ")[0] for line in text.splitlines() if line.startswith("| "))
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


def anchors(path: Path) -> set[str]:
    """Anchors of the headings, as they are made where Markdown is shown."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_table_of_variables_is_the_generated_one():
    mine = {name: value for name, value in os.environ.items() if not name.startswith("BLAZR_")}
    mine = {name: value for name, value in mine.items() if name not in ("DATABASE_URL", "REDIS_URL")}
    done = subprocess.run(
        [sys.executable, "-m", "blazr_site.settings"], cwd=ROOT, env=mine, capture_output=True, text=True, timeout=60,
        check=True,
    )  # fmt: skip
    shown = CONFIGURATION.split("<!-- variables: begin -->\n", 1)[1].split("\n<!-- variables: end -->", 1)[0]
    assert shown == done.stdout.rstrip("\n"), "paste the output of python -m blazr_site.settings"
    assert os.uname().nodename not in shown, "a default of this machine"


def test_every_row_of_the_table_has_five_cells():
    shown = CONFIGURATION.split("<!-- variables: begin -->\n", 1)[1].split("\n<!-- variables: end -->", 1)[0]
    for line in shown.splitlines():
        assert len(re.findall(r"(?<!\\)\|", line)) == 6, line


def test_every_option_of_serve_is_listed_with_its_variable():
    parser = argparse.ArgumentParser()
    add_serve_arguments(parser)
    options = {option for action in parser._actions for option in action.option_strings} - {"-h", "--help"}
    table = section(CONFIGURATION, "`blazr serve`")
    named = {match for cell in first_cells(table) for match in re.findall(r"--[a-z-]+", cell)}
    assert named == options
    for option, variable, _, _ in SERVE_OPTIONS:
        assert re.search(rf"\| `{option}[^|]*\| `{variable}` \|", table), option


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_relative_links_lead_somewhere(page):
    for link in _LINK.findall(page.read_text()):
        if "://" in link:
            continue
        place, _, anchor = link.partition("#")
        target = (page.parent / place) if place else page
        assert target.exists(), f"{link} does not exist"
        assert not anchor or anchor in anchors(target), f"{link}: no such heading"


@pytest.mark.parametrize("page", [*PAGES, ROOT / "docker-compose.yml"], ids=relative)
def test_every_variable_that_is_named_exists(page):
    unknown = set(_NAME.findall(page.read_text())) - read.KNOWN.keys() - set(read.CLIENT_VARIABLES)
    if page.parent.name == "log":  # history
        unknown -= RETIRED.keys()
    assert not unknown


def test_each_decision_has_a_number_of_its_own():
    pages = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    numbers = [page.name[:4] for page in pages]
    assert len(set(numbers)) == len(numbers), numbers
    for page in pages:
        assert page.read_text().startswith(f"# {int(page.name[:4])}."), page.name


def test_every_folder_is_in_the_table_and_exists():
    table = section((ROOT / "docs" / "architecture.md").read_text(), "The folders")
    rows = re.findall(r"^\| (`[^|]+) \|", table, flags=re.MULTILINE)
    assert rows
    for row in rows:
        # A row may go on with siblings of its first path.
        names = re.findall(r"`([^`]+)`", row)
        places = [ROOT, (ROOT / names[0]).parent]
        for name in names:
            assert any((place / name).exists() for place in places), name
    named = {name.removeprefix("inference/") for row in rows for name in re.findall(r"`([^`]+)`", row)}
    packages = {path.parent.name for path in (ROOT / "inference").glob("*/__init__.py")}
    assert packages - {"management", "migrations"} <= named


@pytest.mark.parametrize("page", DOCS, ids=relative)
def test_every_source_file_that_is_named_exists(page):
    for name in re.findall(r"`((?:inference|models_registry|blazr_site|templates)/[\w/.*]+)`", page.read_text()):
        assert list(ROOT.glob(name.rstrip("/"))), name


def sources_of(module: str) -> str:
    """The source of a module that ``python -m`` runs, with its siblings where it is a package."""
    path = ROOT / module.replace(".", "/")
    files = [path / "__main__.py", *sorted(path.glob("*.py"))] if path.is_dir() else [path.with_suffix(".py")]
    return "".join(file.read_text() for file in files)


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_every_command_that_is_named_exists_with_its_options(page):
    text = page.read_text()
    for span in re.findall(r"`([^`]*\bpython -m (?:bench|tests|blazr_site|inference)[^`]*)`", text):
        module = span.split("python -m ", 1)[1].split()[0]
        for option in re.findall(r"(?<!\S)(--[a-z][a-z-]*)", span):
            assert f'"{option}"' in sources_of(module), span
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    assert set(re.findall(r"`make ([a-z-]+)", text)) <= targets


def test_the_page_names_no_parameter_that_does_not_exist():
    known = {*CompletionRequestSerializer().fields, *ChatRequestSerializer().fields}
    shown = section(API, "Parameters").split("`chat_template_kwargs` can't set")[0]
    assert {name.partition(":")[0] for name in re.findall(r"`([^`]+)`", shown)} <= known


@pytest.mark.parametrize(
    ("serializer", "path"),
    [(CompletionRequestSerializer, "/v1/completions"), (ChatRequestSerializer, "/v1/chat/completions"),
     (EmbeddingRequestSerializer, "/v1/embeddings"), (RerankRequestSerializer, "/v1/rerank"),
     (InfillRequestSerializer, "/infill"), (ApplyTemplateRequestSerializer, "/apply-template"),
     (TokenizeRequestSerializer, "/tokenize"), (DetokenizeRequestSerializer, "/detokenize")],
)  # fmt: skip
def test_the_reference_has_exactly_the_parameters_of_an_endpoint(serializer, path):
    shown = REFERENCE.split(f"\n### POST {path}\n", 1)[1].split("\n### ", 1)[0]
    assert first_cells(shown) == set(serializer().fields)


def test_refused_parameters_and_hints_are_those_of_the_tables_with_their_reasons():
    shown = section(REFERENCE, "Parameters that are refused")
    tables = {
        "Everywhere": refusals.REFUSED_ANYWHERE,
        "Completions": refusals.REFUSED_IN_COMPLETIONS,
        "Chat completions": refusals.REFUSED_IN_CHAT,
        "Responses": REFUSED_IN_RESPONSES,
        "Messages": REFUSED_IN_MESSAGES,
        "Options of Ollama": REFUSED_OPTIONS,
        "Infill": REFUSED_IN_INFILL,
        "Hint": refusals.HINTS,
    }
    for title, rules in tables.items():
        if not rules:
            continue
        table = shown.split(f"\n| {title} |", 1)[1].split("\n\n", 1)[0]
        assert first_cells(table) == set(rules), title
        for name, rule in rules.items():
            text = rule.expected if title == "Hint" else rule.reason
            assert f"| `{name}` | {text} |" in table.replace("\\|", "|"), name


def test_every_error_code_is_in_the_table_with_its_status():
    rows = re.findall(r"^\| (\d+) \|[^|]*\| ([^|]+) \|", section(API, "Errors"), flags=re.MULTILINE)
    listed = {(int(status), code) for status, codes in rows for code in re.findall(r"`([^`]+)`", codes)}
    classes = {*_classes().values(), MethodNotAllowed, UnsupportedMediaType} - {BlazrError}
    assert listed == {(cls.http_status, cls.code) for cls in classes}


def test_every_metric_is_in_the_table():
    listed = first_cells(section(OPERATIONS, "Metrics"))
    text = metrics.exposition(models={}, workers={}, names={}, jobs={}).decode()
    names = {name for name in re.findall(r"^# TYPE (\S+)", text, flags=re.MULTILINE) if not name.endswith("_created")}
    assert {name for name in listed if name.startswith("blazr_")} == names


def test_every_path_of_the_schema_is_in_the_reference(db):
    from blazr_site.api_docs import openapi_document

    for path in openapi_document()["paths"]:
        if path.startswith("/registry/"):
            continue
        shown = re.sub(r"\{\w+_id\}", "{id}", re.sub(r"\{\w*model\w*\}", "{name}", path))
        assert shown in API, path
