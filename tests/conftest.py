"""Shared: an own data directory, a database that threads can share, an embedded Redis, PostgreSQL where it is."""

from __future__ import annotations

import gc
import os
import subprocess
import tempfile
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path

import hypothesis
import pytest
from django.conf import settings as django_settings
from django.db import connection
from pytest_django import DjangoDbBlocker

from blazr_site import embedded_redis
from blazr_site.settings.redis import RedisUrls, redis_urls
from tests.faults.postgres import PostgresServer, reason_without
from tests.migrated import use_template

ROOT = Path(__file__).parents[1]

# Server threads have connections of their own. In-memory databases that are shared between connections answer
# "table is locked" without waiting, a file waits its turn as in production. Set before the first connection is made.
if django_settings.DATABASES["default"]["ENGINE"].endswith("sqlite3"):
    _database_folder = tempfile.TemporaryDirectory(prefix="blazr-test-db-")
    _database = django_settings.DATABASES["default"].setdefault("TEST", {})
    _database["NAME"] = _database.get("NAME") or str(Path(_database_folder.name) / "test.sqlite3")

# An example that takes 0.2 s fails otherwise, and so does a test whose examples take long to draw, which is a matter of
# what else the machine does.
hypothesis.settings.register_profile("suite", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("suite")

# A real hash takes a second of a slow processor, by design; tests make hundreds of accounts.
django_settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]

# A machine that does something else for some seconds is no outage of Redis. Tests of outages say how long they wait.
django_settings.BLAZR_REDIS_TIMEOUT_S = 60.0

# HTTP clients read the certificates of all authorities when they are made, which takes longer than a test's requests.
# No test speaks TLS with anybody; a folder without certificates is read at once.
_no_certificates = tempfile.TemporaryDirectory(prefix="blazr-test-certificates-")
os.environ["SSL_CERT_DIR"] = _no_certificates.name
os.environ.pop("SSL_CERT_FILE", None)  # would be asked first

LONG_SESSION_S, NUM_SLOWEST = 120, 40
"""A session that takes longer says where its time goes."""

PLACES = {"faults": -1, "live": 1, "browser": 2}
"""Packages whose modules share processes, which take 10 to 20 s of a processor to start: where they are in a session.
``tests.lanes`` has them in a session of their own."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep each of these packages in one piece, in the shuffled order.

    Between tests of another package pytest stops what a package shares, and starts it again. Tests that empty the
    database stay behind all that need its first rows, where pytest-django has put them.
    """
    items.sort(key=_place)


def _place(item: pytest.Item) -> int:
    place = PLACES.get(item.path.relative_to(ROOT).parts[1], 0)
    marker = item.get_closest_marker("django_db")
    empties = "transactional_db" in getattr(item, "fixturenames", ()) or bool(
        marker and (marker.kwargs.get("transaction") or any(marker.args))
    )
    return max(place, 0) if empties else place


def pytest_collection_finish() -> None:
    """Let rounds of the garbage collector leave out what has been imported, as servers do.

    Each end of an engine and of a model orders a round, which took half a second with the modules of all tests.
    """
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Let the interpreter's last round find them again, or Triton's library says that they leak."""
    gc.unfreeze()


_processor_s: Counter[str] = Counter()
"""By module."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Count what a module takes of the processors, with the child processes that have ended in it."""
    before = sum(os.times()[:4])
    try:
        return (yield)
    finally:
        _processor_s[item.location[0]] += sum(os.times()[:4]) - before


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show which modules took most of the processors, and how long they took, with what their fixtures took."""
    seconds: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                seconds[report.location[0]] += report.duration
    if (total := seconds.total()) < LONG_SESSION_S:
        return
    terminalreporter.section(f"{_processor_s.total():.0f} s of a processor in {total:.0f} s; largest modules")
    for module, taken in _processor_s.most_common(NUM_SLOWEST):
        terminalreporter.line(f"{taken:6.1f} s in {seconds[module]:6.1f} s  {module}")


@pytest.fixture(scope="session", autouse=True)
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Every path of the settings that lies in the data directory moves to a temporary one."""
    old = django_settings.BLAZR_DATA_DIR
    new = tmp_path_factory.mktemp("data")
    changed = {}
    for name in dir(django_settings):
        value = getattr(django_settings, name) if name.startswith("BLAZR_") else None
        if isinstance(value, Path) and (value == old or old in value.parents):
            changed[name] = value
            moved = new / value.relative_to(old)
            setattr(django_settings, name, moved)
            if name.endswith("_DIR"):
                moved.mkdir(parents=True, exist_ok=True)
    yield new
    for name, value in changed.items():
        setattr(django_settings, name, value)


@pytest.fixture(scope="session")
def django_db_setup(
    django_db_setup: None, django_db_blocker: DjangoDbBlocker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """The session's database, and a copy of it before any test has written, with which servers begin.

    Where no test of the session asks for a database, none is made, and the connection is still that to the database of
    the settings, which may be a developer's.
    """
    database = connection.settings_dict
    if connection.vendor == "sqlite" and database["NAME"] == database["TEST"]["NAME"]:
        template = tmp_path_factory.mktemp("migrated") / "db.sqlite3"
        with django_db_blocker.unblock(), connection.cursor() as cursor:
            cursor.execute("VACUUM INTO %s", [str(template)])
        use_template(template)
    yield
    use_template(None)


@pytest.fixture(scope="session", autouse=True)
def usage_without_thread() -> None:
    """Records of requests that the application serves in this process wait until a test flushes them.

    The writer's thread would look for the database between tests, where it is forbidden, and behind the last one.
    """
    from inference.records.usage import usage_writer

    usage_writer().close()


@pytest.fixture(scope="session", autouse=True)
def emptied_without_permissions() -> Iterator[None]:
    """Emptying the database after a test writes no content types and permissions.

    Django's ``flush`` makes all of them again, which takes longer than the rest of it; what needs a content type (the
    admin's history) makes it.
    """
    from django.contrib.contenttypes.models import ContentType
    from django.core.management.commands import flush

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flush, "emit_post_migrate_signal", lambda *_, **__: ContentType.objects.clear_cache())
        yield


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisUrls]:
    """A Redis of this test session on a private socket, as its three clients spell it."""
    with tempfile.TemporaryDirectory(prefix="blazr-test-") as name:
        directory = Path(name)
        socket = directory / "redis.sock"
        process = subprocess.Popen(
            embedded_redis.server_command(socket=socket, directory=directory, durable=False),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            urls = redis_urls(f"unix://{socket}?db=0")
            embedded_redis.wait_until_ready(urls.client, timeout_s=60)
            yield urls
        finally:
            process.terminate()
            process.wait(60)


@pytest.fixture
def redis_urls_in_settings(redis_server: RedisUrls, settings) -> RedisUrls:
    """The session's Redis, emptied, and the settings pointing at it."""
    import redis

    client = redis.Redis.from_url(redis_server.client)
    client.flushall()
    client.close()
    settings.BLAZR_REDIS_URL = redis_server.client
    settings.CELERY_BROKER_URL = redis_server.celery
    settings.CHANNEL_LAYERS = {
        "default": {
            "BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer",
            "CONFIG": {"hosts": [redis_server.channels], "prefix": "blazr:channels"},
        }
    }
    return redis_server


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """URL of a throw-away PostgreSQL cluster on a unix socket."""
    if reason := reason_without():
        pytest.skip(reason)
    with tempfile.TemporaryDirectory(prefix="blazr-pg-") as name:
        server = PostgresServer(Path(name))
        yield server.url
        server.stop()
