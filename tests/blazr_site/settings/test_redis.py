"""Redis: one address in three spellings, and the embedded server's directory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from django.core.exceptions import ImproperlyConfigured

from blazr_site.settings.redis import redis_urls, runtime_dir


def test_three_spellings_of_one_redis():
    urls = redis_urls("unix:///run/x.sock?db=3")
    assert urls.client == urls.channels == "unix:///run/x.sock?db=3"
    assert urls.celery == "redis+socket:///run/x.sock?virtual_host=3"
    assert redis_urls(urls.celery) == urls
    tcp = redis_urls("redis://:secret@cache:6380/2")
    assert tcp.client == tcp.celery == tcp.channels == "redis://:secret@cache:6380/2"
    assert redis_urls("redis://cache").client == "redis://cache:6379/0"


@pytest.mark.parametrize("url", ["", "cache:6379", "amqp://x", "redis://", "unix://relative", "redis://h:99999999/0"])
def test_bad_redis_url_is_refused_by_name(url):
    with pytest.raises(ImproperlyConfigured, match="REDIS_URL"):
        redis_urls(url)


def test_runtime_dir_is_short_and_depends_on_the_data_dir(monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/" + "deep/" * 30)
    one, two = runtime_dir(Path("/a" * 90)), runtime_dir(Path("/b"))
    assert one != two
    assert len(os.fsencode(one / "redis.sock")) < 100
