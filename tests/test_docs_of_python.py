"""docs/python.md: its programs run on a tiny checkpoint, in a process that can't import Django."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import fields

import pytest

from inference.llm.options import LLMOptions
from tests.inference.llm.adapter_writing import write_adapter
from tests.inference.llm.harness import CONFIG, Checkpoint
from tests.inference.text.tokenisation.family_templates import FAMILY_TEMPLATES
from tests.test_docs import ROOT, first_cells, section

PAGE = (ROOT / "docs" / "python.md").read_text()
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
ADAPTERS = ("sql", "prose")
RUNNER = """
import sys

class Refusal:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("django", "rest_framework", "redis", "celery"):
            raise AssertionError(f"{name} was imported")

sys.meta_path.insert(0, Refusal())
exec(compile(sys.stdin.read(), "docs/python.md", "exec"), {"__name__": "__main__"})
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tiny")
    Checkpoint(directory)
    (directory / "config.json").write_text(json.dumps(CONFIG | {"bos_token_id": 0, "eos_token_id": 1}))
    tokens = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": FAMILY_TEMPLATES["chatml"]}
    (directory / "tokenizer_config.json").write_text(json.dumps(tokens))
    for number, name in enumerate(ADAPTERS):
        write_adapter(directory / name, number)
    return directory


def test_the_first_program_has_ten_lines():
    assert len([line for line in PROGRAMS[0].splitlines() if line.strip()]) <= 10


@pytest.mark.parametrize("program", PROGRAMS, ids=range(len(PROGRAMS)))
def test_a_program_of_the_page_runs_without_django(program, model):
    assert program.count('"demo"') == 1 + ("from_pretrained" in program) * (program.count("from_pretrained") - 1)
    program = program.replace('"demo"', repr(str(model)))
    for name in ADAPTERS:
        program = program.replace(f'"adapters/{name}"', repr(str(model / name)))
    for _ in range(5):
        done = subprocess.run(
            [sys.executable, "-c", RUNNER], input=program, cwd=ROOT, text=True, capture_output=True, timeout=240
        )
        if "has a NUL at character" not in done.stderr:  # random weights write it now and then; a message may not
            break
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip()


def test_every_option_of_the_table_exists():
    named = first_cells(section(PAGE, "Loading"))
    assert named - {"adapters", "overrides", "progress"} <= {item.name for item in fields(LLMOptions)}
