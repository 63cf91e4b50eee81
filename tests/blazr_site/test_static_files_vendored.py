"""Files of other projects are what their packages have, with their licenses; our own stylesheet stays small."""

from __future__ import annotations

import gzip
import hashlib
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (ROOT / "blazr_site/static/vendor", ROOT / "tests/browser/vendor")
MAX_OWN_CSS_BYTES = 8 << 10
"""Of what is transferred, which is compressed: the source may be readable."""


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.parent.name)
def test_every_file_has_the_digest_of_its_table(folder: Path) -> None:
    tables = tomllib.loads((folder / "versions.toml").read_text())
    in_folders = folder == FOLDERS[0]
    listed = {(f"{name}/" if in_folders else "") + file for name, table in tables.items() for file in table["sha256"]}
    found = {file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()}
    assert found - {"versions.toml"} == listed
    for name, table in tables.items():
        assert table["license"] and table["version"], name
        assert any("LICENSE" in file for file in table["sha256"]), name
        for file, digest in table["sha256"].items():
            path = folder / name / file if in_folders else folder / file
            assert hashlib.sha256(path.read_bytes()).hexdigest() == digest, path


def test_our_own_stylesheet_is_small() -> None:
    own = [
        file for file in ROOT.glob("*/static/**/*.css") if "vendor" not in file.parts and "api_docs" not in file.name
    ]
    assert sum(len(gzip.compress(file.read_bytes())) for file in own) <= MAX_OWN_CSS_BYTES, own
