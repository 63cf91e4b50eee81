"""What every test of the package has: a database that threads can share, and no answers remembered from other tests."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.conf import settings as django_settings

# Server threads have connections of their own. In-memory databases that are shared between connections answer
# "table is locked" without waiting, a file waits its turn as in production. Set before the first connection is made.
if django_settings.DATABASES["default"]["ENGINE"].endswith("sqlite3"):
    _directory = tempfile.TemporaryDirectory(prefix="blazr-test-db-")
    _test_options = django_settings.DATABASES["default"].setdefault("TEST", {})
    _test_options["NAME"] = _test_options.get("NAME") or str(Path(_directory.name) / "test.sqlite3")


@pytest.fixture(autouse=True)
def fresh_caches() -> Iterator[None]:
    from inference.auth import key_cache_clear
    from inference.selectors import served_model_cache_clear

    served_model_cache_clear()
    key_cache_clear()
    yield
