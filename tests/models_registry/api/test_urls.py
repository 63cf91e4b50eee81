"""Routes of the registry's API: one name each, found again by its own path."""

from __future__ import annotations

from django.urls import resolve, reverse

from models_registry.api.urls import urlpatterns

ID = "00000000-0000-4000-8000-000000000000"


def test_every_route_has_a_name_and_is_reached_by_its_path() -> None:
    names = [pattern.name for pattern in urlpatterns]
    assert len(names) == len(set(names)) and all(name and name.startswith("registry-") for name in names)
    for pattern in urlpatterns:
        converters = pattern.pattern.converters
        kwargs = {name: ID if "UUID" in type(one).__name__ else "1" for name, one in converters.items()}
        assert resolve(reverse(pattern.name, kwargs=kwargs)).url_name == pattern.name
