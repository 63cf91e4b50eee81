"""The check of constructs finds each of them, and the project has none."""

from __future__ import annotations

import ast

import pytest

from tests.checks.constructs import constructs, problems
from tests.checks.layout import Module


def found(source: str, path: str = "inference/x.py") -> list[str]:
    return [construct for construct, _, _ in constructs(Module(path, source, ast.parse(source)))]


@pytest.mark.parametrize(
    ("source", "construct"),
    [
        ("import pickle", "pickle"),
        ("import dill as json", "dill"),
        ("from pickle import loads", "pickle"),
        ("from multiprocessing.queues import Queue", "multiprocessing.queues"),
        ("import marshal, json", "marshal"),
        ("import shelve", "shelve"),
        ("eval('1')", "eval"),
        ("exec(code)", "exec"),
        ("os.system('ls')", "os.system"),
        ("torch.load(path, weights_only=True)", "torch.load"),
        ("numpy.load(path, allow_pickle=True)", "numpy.load"),
        ("load(path, allow_pickle=True)", "allow_pickle=True"),
        ("yaml.load(text)", "yaml.load"),
        ("subprocess.run(command, shell=True)", "shell=True"),
        ("subprocess.run(command, shell=flag)", "shell=flag"),
        ("AutoModel.from_pretrained(path, trust_remote_code=True)", "trust_remote_code=True"),
    ],
)
def test_each_construct_is_found(source, construct):
    assert construct in found(source)


def test_asserts_count_where_security_is_decided_only():
    assert found("assert key.is_valid", "inference/access/api_keys.py") == ["assert"]
    assert found("assert found is not None") == []


def test_methods_of_the_same_name_and_false_arguments_are_none():
    assert found("network.eval()\nclient.eval(script)\nre.compile('a')\nrun(command, shell=False)") == []


def test_the_project_has_none():
    assert list(problems()) == []
