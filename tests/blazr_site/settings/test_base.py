"""Django's own settings."""

from __future__ import annotations

from importlib.util import find_spec

from blazr_site.settings import base


def test_debug_pages_are_never_shown():
    assert base.DEBUG is False


def test_every_application_and_middleware_can_be_imported():
    for name in base.INSTALLED_APPS:
        assert find_spec(name) is not None, name
    for path in base.MIDDLEWARE:
        assert find_spec(path.rpartition(".")[0]) is not None, path


def test_templates_lie_beside_the_packages():
    (folder,) = base.TEMPLATES[0]["DIRS"]
    assert (folder / "base.html").exists() or any(folder.glob("*.html"))
