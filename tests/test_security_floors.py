"""No package is older than its last published hole; every package is pinned with its hashes."""

from __future__ import annotations

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
FLOORS = tomllib.loads((ROOT / "security-floors.toml").read_text())["floor"]
LOCKS = ("requirements.lock", "requirements-dev.lock", "requirements-torch.lock")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def pins(name: str) -> dict[str, tuple[Version, list[str]]]:
    """Version and hashes of each package of a lock file."""
    entries = re.split(r"\n(?=\S)", re.sub(r"(?m)^#.*\n", "", (ROOT / name).read_text()).strip())
    found = {}
    for entry in entries:
        requirement = Requirement(entry.split(" \\\n")[0].strip())
        (specifier,) = requirement.specifier
        assert specifier.operator == "==", entry[:80]
        found[canonicalize_name(requirement.name)] = (
            Version(specifier.version),
            re.findall(r"--hash=sha256:([0-9a-f]{64})", entry),
        )
    return found


@pytest.mark.parametrize("floor", FLOORS, ids=[floor["package"] for floor in FLOORS])
def test_the_installed_version_is_not_below_the_floor(floor):
    assert floor["advisories"] and floor["why"]
    assert Version(metadata.version(floor["package"])) >= Version(floor["lowest"]), floor["advisories"]


@pytest.mark.parametrize("lock", LOCKS)
def test_no_lock_file_pins_a_version_below_its_floor(lock):
    pinned = pins(lock)
    for floor in FLOORS:
        name = canonicalize_name(floor["package"])
        if (name == "torch") == (lock == "requirements-torch.lock"):
            assert pinned[name][0] >= Version(floor["lowest"]), floor["package"]


def test_what_the_project_itself_requires_is_not_below_a_floor():
    lowest = {canonicalize_name(floor["package"]): floor for floor in FLOORS}
    for line in PROJECT["dependencies"]:
        requirement = Requirement(line)
        floor = lowest.get(canonicalize_name(requirement.name))
        if floor is not None:
            least = [Version(item.version) for item in requirement.specifier if item.operator == ">="]
            assert least and max(least) >= Version(floor["lowest"]), line


@pytest.mark.parametrize("lock", LOCKS)
def test_every_pin_has_hashes(lock):
    assert [name for name, (_, hashes) in pins(lock).items() if not hashes] == []


def test_the_lock_files_have_every_dependency():
    """Triton comes in the version that torch's build pins, where it has one."""
    assert set(pins(LOCKS[2])) == {"torch"}
    runtime = {canonicalize_name(Requirement(line).name) for line in PROJECT["dependencies"]}
    dev = runtime | {canonicalize_name(Requirement(line).name) for line in PROJECT["optional-dependencies"]["dev"]}
    assert runtime - set(pins(LOCKS[0])) == {"torch"}
    assert dev - set(pins(LOCKS[1])) == {"torch", "triton"}


def test_both_lock_files_pin_the_same_versions():
    runtime, dev = pins(LOCKS[0]), pins(LOCKS[1])
    assert {name: version for name, (version, _) in runtime.items()} == {name: dev[name][0] for name in runtime}
