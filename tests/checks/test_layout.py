"""The check of the layout finds misplaced tests and modules without one, and measures functions and imports."""

from __future__ import annotations

import ast
import textwrap

import pytest

from tests.checks import layout
from tests.checks.layout import Module, function_imports, functions


def module(source: str) -> Module:
    text = textwrap.dedent(source)
    return Module("inference/module.py", text, ast.parse(text))


@pytest.mark.parametrize(
    ("test", "subject"),
    [
        ("tests/inference/engine/test_engine.py", "inference/engine/engine.py"),
        ("tests/inference/engine/test_engine_faults.py", "inference/engine/engine.py"),
        ("tests/inference/text/test_tokenisation.py", "inference/text/tokenisation/__init__.py"),
        ("tests/bench/test_load.py", "bench/load.py"),
        ("tests/gpu/test_mamba2.py", "inference/modelling/backends/triton/mamba2.py"),
        ("tests/gpu/test_quantised_networks.py", "inference/modelling/backends/triton/quantised.py"),
        (
            "tests/inference/modelling/backends/native/test_thread_pool.py",
            "inference/modelling/backends/native/src/thread_pool.cpp",
        ),
        ("tests/inference/modelling/backends/native/test_build.py", "inference/modelling/backends/native/build.py"),
    ],
)
def test_a_test_file_may_be_about_a_module_of_its_name_or_of_a_shorter_one(test, subject):
    assert subject in layout.tested_path(test)
    assert (layout.ROOT / subject).exists()


def test_only_the_native_backend_has_sources_in_cpp():
    assert not any(path.endswith(".cpp") for path in layout.tested_path("tests/inference/engine/test_engine.py"))


def test_the_longest_name_comes_first():
    found = layout.tested_path("tests/inference/engine/test_state_manager.py")
    assert found.index("inference/engine/state_manager.py") < found.index("inference/engine/state/__init__.py")


def test_modules_without_a_test_and_tests_without_a_module_are_found(monkeypatch, tmp_path):
    for name, lines in {"inference/long.py": 61, "inference/short.py": 60, "inference/tested.py": 61}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x = 1\n" * lines)
    (tmp_path / "tests/inference").mkdir(parents=True)
    (tmp_path / "tests/inference/test_tested_twice.py").touch()
    (tmp_path / "tests/inference/test_moved.py").touch()
    monkeypatch.setattr(layout, "ROOT", tmp_path)
    monkeypatch.setattr(layout, "EXCEPTIONS", {"inference/tested.py": "had none"})
    found = list(layout.tests_at_their_modules())
    assert [line.partition(":")[0] for line in found] == [
        "tests/inference/test_moved.py",
        "inference/long.py",
        "inference/tested.py",
    ]
    assert "remove it from EXCEPTIONS" in found[2]


def test_imports_of_nested_functions_count_once_and_those_of_others_not_at_all():
    source = """
    from inference.a import a

    def outer():
        import torch
        from django.db import models

        def inner():
            from inference.b import b

        class Local:
            def method(self):
                from models_registry.c import c
    """
    assert function_imports(module(source)) == [9, 13]


def test_one_comment_gives_the_reason_of_a_block_of_imports():
    lines = """
    # Serializers need Django, which isn't set up when this module is imported.
    from inference.a import a
    from inference.b import b

    from inference.c import c
    from inference.d import d  # imports torch
    """.splitlines()
    assert [layout.has_reason(lines, line) for line in (3, 4, 6, 7)] == [True, True, False, True]


def test_a_kernel_may_be_longer_than_a_function():
    source = """
    @triton.jit
    def kernel(x):
        return x

    @triton.jit(debug=True)
    def other(x):
        return x

    @functools.cache
    def plain(x):

        return x
    """
    assert [(found.name, found.num_lines, found.max_lines) for found in functions(module(source))] == [
        ("kernel", 2, 100),
        ("other", 2, 100),
        ("plain", 3, 60),
    ]


def test_every_exception_names_a_module():
    assert [path for path in layout.EXCEPTIONS if not (layout.ROOT / path).exists()] == []
    assert len(layout.EXCEPTIONS) <= layout.MAX_EXCEPTIONS


def test_lines_of_code_leave_docstrings_and_comments_out():
    head = '"""A module."""\n\n# why\nNAME = """of\ntwo lines"""\n\n\n'
    source = head + 'def one():\n    """Return 1."""\n    return 1  # so\n'
    assert layout.num_code_lines(source) == 4
