"""Check the layout: ``python -m tests.checks.layout``; with ``--figures`` print its figures instead.

Rules: a test file stands at the path of the module it tests, a module of more than 60 lines has a test, files and
functions stay within their limits, each folder says in one sentence what it is for, and first-party imports stand at
the head of a module unless a comment gives one of the two allowed reasons.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("inference", "models_registry", "blazr_site")
MIRRORED = (*PACKAGES, "bench")
"""Packages whose tests stand at mirrored paths below ``tests``."""
NATIVE = "inference/modelling/backends/native"
DEVICE_TESTS = {"gpu": "inference/modelling/backends/triton"}
"""Folders of tests that mirror another path; those of ``tests/gpu`` run without the packages of the platform."""
GENERATED = {"migrations"}

MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 60
MAX_KERNEL_LINES = 100
"""Of a Triton kernel: each pointer and stride is a parameter on a line of its own, and a kernel can't be taken apart
where its parts would pass accumulators."""
MAX_UNTESTED_LINES = 60
MAX_LOOSE_MODULES = 6
MAX_FUNCTION_IMPORTS = 25

EXCEPTIONS: dict[str, str] = {
    "inference/text/tokenisation/children/huggingface.py": "runs in a child process; test_tokenizer_huggingface.py",
    "inference/text/tokenisation/children/loop.py": "runs in a child process; each failure is in test_sandbox.py",
    "inference/text/tokenisation/children/template.py": "runs in a child process; test_chat_template.py",
    "inference/text/tool_calls/call_parts.py": "reached through the readers; each format is in test_parser.py",
    "inference/text/tool_calls/call_readers.py": "reached through OutputParser; each format is in test_parser.py",
}
"""Modules of more than 60 lines without a test at the mirrored path, each with the reason. At most 20."""
MAX_EXCEPTIONS = 20

ENGINE = "inference/engine"
ENGINE_CORE = {
    "schedule": (
        "engine.py",
        "scheduler.py",
        "prefill_order.py",
        "token_budget.py",
        "request.py",
        "running_request.py",
    ),
    "state": ("state_manager.py", "state/"),
    "run": ("model_runner.py",),
    "sample": ("sampling/",),
    "loop": ("loop.py",),
}
"""Files and folders of the engine's core: what a step runs through, without prefix cache and speculation."""
NOT_CORE = "sampling/llama_cpp/"
"""Samplers that only some requests use."""


@dataclass(frozen=True)
class Module:
    """A Python file of the repository.

    Attributes:
        path: Relative to the root, with forward slashes.
        source: Its text.
        tree: Its syntax tree.
    """

    path: str
    source: str
    tree: ast.Module

    @property
    def num_lines(self) -> int:
        """Lines of the file."""
        return self.source.count("\n")


def sources(*folders: str) -> Iterator[tuple[str, str]]:
    """Path and text of all Python files of the folders, generated ones excepted."""
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if GENERATED.isdisjoint(path.parts):
                yield path.relative_to(ROOT).as_posix(), path.read_text()


def modules(*folders: str) -> Iterator[Module]:
    """The same files with their syntax trees."""
    for path, source in sources(*folders):
        yield Module(path, source, ast.parse(source))


@dataclass(frozen=True)
class Function:
    """A function of a module.

    Attributes:
        name: As it is defined.
        num_lines: From ``def`` to its last line, docstring included.
        max_lines: How many it may have.
    """

    name: str
    num_lines: int
    max_lines: int


def functions(module: Module) -> Iterator[Function]:
    """All functions of a module, methods and nested ones included."""
    for node in ast.walk(module.tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            is_kernel = any(ast.unparse(item).startswith("triton.jit") for item in node.decorator_list)
            max_lines = MAX_KERNEL_LINES if is_kernel else MAX_FUNCTION_LINES
            yield Function(node.name, (node.end_lineno or node.lineno) - node.lineno + 1, max_lines)


def function_imports(module: Module) -> list[int]:
    """Line numbers of first-party imports inside functions; an import of a nested function counts once."""
    return sorted(
        {
            inner.lineno
            for node in ast.walk(module.tree)
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
            for inner in ast.walk(node)
            if isinstance(inner, ast.ImportFrom) and (inner.module or "").split(".")[0] in PACKAGES
        }
    )


def tested_path(test: str) -> list[str]:
    """Files that a test file may be about: ``test_engine_faults.py`` may be about ``engine.py``.

    A test of the native backend may be about a C++ source, and one of ``tests/gpu`` about a module of Triton kernels.
    """
    folder, _, name = test.removeprefix("tests/").rpartition("/")
    folder = DEVICE_TESTS.get(folder, folder)
    words = name.removeprefix("test_").removesuffix(".py").split("_")
    found = ["_".join(words[:count]) for count in range(len(words), 0, -1)]
    patterns = ["{}.py", "{}/__init__.py"] + (["src/{}.cpp"] if folder == NATIVE else [])
    return [f"{folder}/{pattern.format(stem)}" for stem in found for pattern in patterns]


def test_files(*folders: str) -> list[str]:
    """Paths of all test files of folders of ``tests``."""
    found = (path for name in folders for path in (ROOT / "tests" / name).rglob("test_*.py"))
    return sorted(path.relative_to(ROOT).as_posix() for path in found)


def without_module() -> Iterator[str]:
    """Test files at mirrored paths whose path names no module."""
    for name in test_files(*MIRRORED):
        if not any((ROOT / candidate).exists() for candidate in tested_path(name)):
            yield f"{name}: no module at {tested_path(name)[0]} or a shorter name; move it beside its module's path"


def without_test() -> Iterator[str]:
    """Modules of more than 60 lines without a test file, exceptions included."""
    covered = {
        next((candidate for candidate in tested_path(name) if (ROOT / candidate).exists()), "")
        for name in test_files(*MIRRORED, *DEVICE_TESTS)
    }
    for path, source in sources(*PACKAGES):
        if source.count("\n") > MAX_UNTESTED_LINES and path not in covered:
            yield path


def tests_at_their_modules() -> Iterator[str]:
    """Both directions of the mirrored path."""
    yield from without_module()
    untested = set(without_test())
    for path in sorted(untested - EXCEPTIONS.keys()):
        folder, _, name = path.rpartition("/")
        yield f"{path}: more than {MAX_UNTESTED_LINES} lines and no test at tests/{folder}/test_{name}"
    for path in sorted(EXCEPTIONS.keys() - untested):
        yield f"{path}: has a test now; remove it from EXCEPTIONS in tests/checks/layout.py"
    if len(EXCEPTIONS) > MAX_EXCEPTIONS:
        yield f"{len(EXCEPTIONS)} exceptions; at most {MAX_EXCEPTIONS} modules may go without a test"


def sizes() -> Iterator[str]:
    """Files and functions over their limits."""
    for path, source in sources(*PACKAGES, "bench", "tests"):
        if (num_lines := source.count("\n")) > MAX_FILE_LINES:
            yield f"{path}: {num_lines} lines, at most {MAX_FILE_LINES}; split it"
    for module in modules(*PACKAGES):
        for found in functions(module):
            if found.num_lines > found.max_lines:
                yield f"{module.path}: {found.name} has {found.num_lines} lines, at most {found.max_lines}; split it"


def folders() -> Iterator[str]:
    """Loose modules of ``inference`` and folders that don't say what they are for."""
    loose = loose_modules()
    if len(loose) > MAX_LOOSE_MODULES:
        yield f"inference/ has {len(loose)} loose modules, at most {MAX_LOOSE_MODULES}: {', '.join(loose)}"
    for path in sorted((ROOT / "inference").rglob("__init__.py")):
        relative = path.relative_to(ROOT).as_posix()
        if GENERATED.isdisjoint(path.parts) and not ast.get_docstring(ast.parse(path.read_text())):
            yield f"{relative}: starts without a sentence that says what the folder is for"


def loose_modules() -> list[str]:
    """Modules of ``inference`` that are in none of its folders."""
    return sorted(path.name for path in (ROOT / "inference").glob("*.py") if path.name != "__init__.py")


def imports() -> Iterator[str]:
    """First-party imports inside functions: their number, and those without a reason beside them."""
    found = [(module, line) for module in modules(*PACKAGES) for line in function_imports(module)]
    if len(found) > MAX_FUNCTION_IMPORTS:
        yield f"{len(found)} first-party imports inside functions, at most {MAX_FUNCTION_IMPORTS}"
    for module, line in found:
        if not has_reason(module.source.splitlines(), line):
            yield f"{module.path}:{line}: import inside a function without a comment that names torch, triton or Django"


def has_reason(lines: list[str], line: int) -> bool:
    """Whether a comment beside the import in ``line``, or above its block of imports, gives an allowed reason."""
    start = line - 1
    while start > 0 and re.match(r"\s*(#|from |import )", lines[start - 1]):
        start -= 1
    return re.search(r"#.*(torch|triton|Django)", "\n".join(lines[start:line])) is not None


CHECKS = (tests_at_their_modules, sizes, folders, imports)


def figures() -> dict[str, int]:
    """The figures of the layout, for a table before and after a change."""
    product = list(modules(*PACKAGES))
    engine_modules = [module for core in engine_core().values() for module in core]
    return {
        "lines of Python outside tests": sum(module.num_lines for module in modules(*PACKAGES, "bench")),
        **{f"engine core: {part}": sum(module.num_lines for module in core) for part, core in engine_core().items()},
        "lines of the engine core": sum(module.num_lines for module in engine_modules),
        "of them without docstrings and comments": sum(num_code_lines(module.source) for module in engine_modules),
        "longest function of the engine core": max(
            found.num_lines for module in engine_modules for found in functions(module)
        ),
        "lines of inference/engine, everything": sum(module.num_lines for module in modules(ENGINE)),
        "modules": len(product),
        "longest file": max(module.num_lines for module in product),
        "longest function": max(found.num_lines for module in product for found in functions(module)),
        "files over 500 lines": sum(module.num_lines > MAX_FILE_LINES for module in product),
        "functions over their limit": sum(
            found.num_lines > found.max_lines for module in product for found in functions(module)
        ),
        "first-party imports inside functions": sum(len(function_imports(module)) for module in product),
        "loose modules in inference/": len(loose_modules()),
        "modules over 60 lines without a test": len(list(without_test())),
        "test files without a module": len(list(without_module())),
        "test files over 500 lines": sum(
            path.read_text().count("\n") > MAX_FILE_LINES for path in (ROOT / "tests").rglob("*.py")
        ),
        "BLAZR_ variables": len(variables(product)),
    }


def engine_core() -> dict[str, list[Module]]:
    """The modules of the engine's core, by the part of a step."""

    def belongs(module: Module, names: tuple[str, ...]) -> bool:
        name = module.path.removeprefix(f"{ENGINE}/")
        return name.startswith(names) and not name.startswith(NOT_CORE)

    found = list(modules(ENGINE))
    return {part: [module for module in found if belongs(module, names)] for part, names in ENGINE_CORE.items()}


def num_code_lines(source: str) -> int:
    """Number of lines with code: docstrings, comments and blank lines don't count."""
    blank = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    texts: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            texts.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in blank:
            code.update(range(token.start[0], token.end[0] + 1))
    return len(code - texts)


def variables(product: list[Module]) -> set[str]:
    """Names of the environment variables that a person may set: those that the settings declare by reading them."""
    declared = re.compile(r"\bread\.\w+\(\s*\"(BLAZR_\w+)\"")
    return {name for module in product for name in declared.findall(module.source)}


def main() -> int:
    """Print what is wrong; the exit status is 1 then."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--figures", action="store_true", help="print the figures of the layout")
    if parser.parse_args().figures:
        for name, value in figures().items():
            sys.stdout.write(f"{name:40} {value:>7,}\n")
        return 0
    problems = [problem for check in CHECKS for problem in check()]
    for problem in problems:
        sys.stderr.write(problem + "\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
