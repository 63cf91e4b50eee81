"""Check constructs: ``python -m tests.checks.constructs`` refuses what runs code from data, or checks by ``assert``.

Most of the published holes of inference servers are one of these: a pickle on a socket or in a file, code that comes
with a model, a shell, and a security check that ``python -O`` removes.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator

from tests.checks.layout import PACKAGES, Module, modules

MODULES = {
    **dict.fromkeys(("pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib"), "it runs code from data"),
    **dict.fromkeys(("marshal", "shelve"), "it runs code from data"),
    "multiprocessing": "its queues and pipes carry pickles",
    "pty": "it starts shells",
}
"""Modules that are not imported, each with the reason."""

CALLS = {
    "eval": "it runs code",
    "exec": "it runs code",
    "compile": "it makes code",
    "__import__": "it imports by a name that may come from data",
    "os.system": "it runs a shell",
    "os.popen": "it runs a shell",
    "subprocess.getoutput": "it runs a shell",
    "subprocess.getstatusoutput": "it runs a shell",
    "torch.load": "it reads pickles (CVE-2025-32434, CVE-2026-24747)",
    "torch.jit.load": "it runs code from a file",
    "torch.hub.load": "it runs code from the network",
    "np.load": "it can read pickles",
    "numpy.load": "it can read pickles",
    "yaml.load": "it makes any object",
    "yaml.full_load": "it makes any object",
    "yaml.unsafe_load": "it makes any object",
    "tempfile.mktemp": "another process can take the name first",
}
"""Functions that are not called, each with the reason."""

KEYWORDS = {
    "shell": "it runs a shell",
    "trust_remote_code": "it runs code that comes with a model (CVE-2026-27893)",
    "allow_pickle": "it reads pickles",
}
"""Arguments that are not true, each with the reason."""

WITHOUT_ASSERT = (
    "blazr_site/body_limit.py",
    "blazr_site/origin.py",
    "inference/access/",
    "inference/host/confinement.py",
    "inference/transport/clients.py",
    "models_registry/detection/",
    "models_registry/upload_rules.py",
    "models_registry/uploads.py",
)
"""Modules that decide on access, or read files of strangers: ``python -O`` drops assertions (CVE-2026-41523)."""

EXCEPTIONS: dict[tuple[str, str], str] = {}
"""Path and construct, with the reason why it is needed there."""


def constructs(module: Module) -> Iterator[tuple[str, str, int]]:
    """Each forbidden construct of a module: what it is, why it is forbidden, its line."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        else:
            names = []
        for name in names:
            if reason := MODULES.get(name.partition(".")[0]):
                yield name, reason, node.lineno
        if isinstance(node, ast.Call):
            yield from _of_call(node)
        elif isinstance(node, ast.Assert) and module.path.startswith(WITHOUT_ASSERT):
            yield "assert", "python -O removes it; raise an error", node.lineno


def _of_call(call: ast.Call) -> Iterator[tuple[str, str, int]]:
    name = ast.unparse(call.func)
    if reason := CALLS.get(name):
        yield name, reason, call.lineno
    for keyword in call.keywords:
        is_false = isinstance(keyword.value, ast.Constant) and not keyword.value.value
        if keyword.arg in KEYWORDS and not is_false:
            yield f"{keyword.arg}={ast.unparse(keyword.value)}", KEYWORDS[keyword.arg], call.lineno


def problems() -> Iterator[str]:
    """Each forbidden construct of the packages and of the benchmarks."""
    for module in modules(*PACKAGES, "bench"):
        for construct, reason, line in constructs(module):
            if (module.path, construct) not in EXCEPTIONS:
                yield f"{module.path}:{line}: {construct} is not used here: {reason}"


def main() -> int:
    """Print every problem; 1 if there is one."""
    found = list(problems())
    for problem in found:
        sys.stdout.write(problem + "\n")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
