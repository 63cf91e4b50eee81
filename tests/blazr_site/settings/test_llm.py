"""The options of the site for checkpoints: forms of the prefix cache's setting."""

from __future__ import annotations

import pytest

from blazr_site.settings import read
from blazr_site.settings.llm import _prefix_cache


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ("on", (True, {})),
        ("true", (True, {})),
        (True, (True, {})),
        ("off", (False, {})),
        ("0", (False, {})),
        (False, (False, {})),
        ("on,snapshots=2GiB", (True, {"snapshots": 2 << 30})),
        ("snapshots=1KiB,host=2KiB", (True, {"snapshots": 1024, "host": 2048})),
        ({"host": "1GiB", "snapshots": 0}, (True, {"host": 1 << 30, "snapshots": 0})),
    ],
)
def test_forms_of_the_prefix_cache(value, wanted):
    assert _prefix_cache(value) == wanted


@pytest.mark.parametrize("value", ["maybe", "off,host=1GiB", "on,slots=3", {"slots": 3}, 3, "on,host=much"])
def test_anything_else_is_refused(value):
    with pytest.raises(read.Wrong):
        _prefix_cache(value)
