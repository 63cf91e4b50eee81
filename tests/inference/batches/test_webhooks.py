"""Webhooks against a real HTTP server; what may be called, signatures, retries."""

from __future__ import annotations

import http.server
import threading
import time
from datetime import timedelta
from typing import Any

import openai
import pytest
from django.utils import timezone

from inference.batches import webhooks
from inference.errors import InvalidRequest, UnsupportedFeature
from inference.jobs import hints
from inference.models import WebhookDelivery
from inference.values.principal import Principal
from tests.inference.batches.fakes import EchoManager, line, make_batch, make_runner, work
from tests.inference.rows import make_checkpoint
from tests.inference.worker.fakes import wait_until

SECRET = "whsec_" + "A" * 43 + "="


class Receiver:
    """Answers with what the test says, and remembers what came."""

    def __init__(self) -> None:
        self.status = 200
        self.headers: dict[str, str] = {}
        self.received: list[tuple[str, dict[str, str], bytes]] = []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.received.append((self.path, dict(self.headers), body))
                self.send_response(outer.status)
                for name, value in outer.headers.items():
                    self.send_header(name, value)
                self.end_headers()

            def log_message(self, *arguments: Any) -> None:
                pass

        self.server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook?a=b"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join(60)
        self.server.server_close()


@pytest.fixture
def receiver():
    found = Receiver()
    yield found
    found.close()


@pytest.fixture(autouse=True)
def setting(settings, tmp_path, monkeypatch):
    settings.BLAZR_FILES_DIR = tmp_path / "files"
    settings.BLAZR_WEBHOOKS = "any"
    monkeypatch.setattr(webhooks, "_turns", {})
    monkeypatch.setattr(hints, "wake_workers", lambda: None)


def ended(url: str, **values: Any) -> WebhookDelivery:
    model = make_checkpoint()
    webhook = {"url": url, "secret": SECRET}
    work(make_batch([line("a")], webhook=webhook, **values), make_runner(EchoManager(str(model.pk))))
    return WebhookDelivery.objects.get()


def due() -> None:
    WebhookDelivery.objects.exclude(next_attempt_at=None).update(next_attempt_at=timezone.now() - timedelta(seconds=1))


def test_the_end_of_a_batch_is_told_once_in_a_form_that_openai_verifies(transactional_db, receiver):
    delivery = ended(receiver.url)
    assert webhooks.deliver_due() == 1
    assert webhooks.deliver_due() == 0
    ((path, headers, body),) = receiver.received
    assert path == "/hook?a=b"
    event = openai.OpenAI(api_key="none").webhooks.unwrap(body, headers, secret=SECRET)
    assert (event.type, event.data.id) == ("batch.completed", delivery.batch.batch_id)
    with pytest.raises(openai.InvalidWebhookSignatureError):
        openai.OpenAI(api_key="none").webhooks.unwrap(body + b" ", headers, secret=SECRET)
    delivery.refresh_from_db()
    assert delivery.delivered_at is not None


def test_failures_are_tried_again_with_growing_pauses_and_the_same_id(transactional_db, receiver):
    receiver.status = 500
    delivery = ended(receiver.url)
    pauses = []
    for _ in range(20):
        due()
        if not webhooks.deliver_due():
            break
        delivery.refresh_from_db()
        if delivery.next_attempt_at is not None:
            pauses.append((delivery.next_attempt_at - timezone.now()).total_seconds())
    assert len(receiver.received) == len(webhooks.PAUSES_S) + 1
    assert [round(pause, -1) for pause in pauses[1:]] == [round(pause, -1) for pause in webhooks.PAUSES_S[1:]]
    assert {headers["webhook-id"] for _, headers, _ in receiver.received} == {delivery.message_id}
    assert (delivery.next_attempt_at, delivery.delivered_at) == (None, None)
    assert "500" in delivery.last_error


def test_beat_has_the_messages_sent(transactional_db, receiver):
    from django.conf import settings as site

    from inference import tasks

    ended(receiver.url)
    assert site.CELERY_BEAT_SCHEDULE["deliver-webhooks"]["task"] == tasks.deliver_webhooks.name
    tasks.deliver_webhooks()
    wait_until(lambda: WebhookDelivery.objects.get().delivered_at is not None)
    assert len(receiver.received) == 1


def test_a_slow_receiver_keeps_no_thread_of_the_tasks(transactional_db, monkeypatch):
    from inference import tasks

    gate, sending = threading.Event(), threading.Semaphore(0)

    def deliver() -> int:
        sending.release()
        return int(gate.wait(60))

    monkeypatch.setattr(webhooks, "deliver_due", deliver)
    begun = time.monotonic()
    for _ in range(webhooks.NUM_SENDERS):
        tasks.deliver_webhooks()
        assert sending.acquire(timeout=30)
    assert not webhooks.start_delivery()
    assert time.monotonic() - begun < 30
    gate.set()
    wait_until(webhooks.start_delivery)
    assert sending.acquire(timeout=30)


def deliveries(tenant: str, number: int) -> None:
    """Store due messages of a tenant."""
    caller = Principal("key", tenant, "", 1)
    for _ in range(number):
        batch = make_batch([line("a")], caller, webhook={"url": "http://127.0.0.1:9/", "secret": SECRET})
        batch.state = "completed"
        webhooks.schedule(batch)


def test_a_slow_receiver_delays_no_other_tenants_messages(transactional_db, monkeypatch):
    """With both senders, one of them stays free for the others."""
    make_checkpoint()
    deliveries("key:1", 3)
    deliveries("key:2", 2)
    gate, sent, slow = threading.Event(), [], threading.Semaphore(0)

    def attempt(row: WebhookDelivery) -> None:
        if row.batch.tenant == "key:1":
            slow.release()
            gate.wait(60)
        sent.append(row.batch.tenant)

    monkeypatch.setattr(webhooks, "_try", attempt)
    assert webhooks.start_delivery()
    assert slow.acquire(timeout=30)
    assert webhooks.start_delivery()
    wait_until(lambda: len(sent) == 2)
    assert sent == ["key:2", "key:2"]
    gate.set()
    wait_until(lambda: len(sent) == 5)
    for thread in threading.enumerate():
        if thread.name == "webhooks":
            thread.join(60)


def test_tenants_with_due_messages_take_turns(db, monkeypatch):
    make_checkpoint()
    for tenant, number in (("key:1", 3), ("key:2", 2), ("key:3", 1)):
        deliveries(tenant, number)
    sent: list[str] = []
    monkeypatch.setattr(webhooks, "_try", lambda row: sent.append(row.batch.tenant))
    assert webhooks.deliver_due() == 6
    assert sent == ["key:1", "key:2", "key:3", "key:1", "key:2", "key:1"]


def test_one_that_is_gone_is_not_asked_again(transactional_db, receiver):
    receiver.status = 410
    delivery = ended(receiver.url)
    webhooks.deliver_due()
    delivery.refresh_from_db()
    assert delivery.next_attempt_at is None


def test_redirects_are_not_followed(transactional_db, receiver):
    receiver.status = 302
    receiver.headers = {"Location": receiver.url.replace("hook", "elsewhere")}
    ended(receiver.url)
    webhooks.deliver_due()
    assert len(receiver.received) == 1
    assert "302" in WebhookDelivery.objects.get().last_error


def test_private_addresses_are_not_called(transactional_db, receiver, settings, monkeypatch):
    """The name is public when the batch is made and private when it ends."""
    delivery = ended(receiver.url)
    settings.BLAZR_WEBHOOKS = "public"
    delivery.batch.webhook_url = "https://rebound.example/hook"
    delivery.batch.save()
    found = [(0, 0, 0, "", (address, 443)) for address in ("93.184.216.34", "10.0.0.1")]
    monkeypatch.setattr(webhooks.socket, "getaddrinfo", lambda *args, **kwargs: found)
    webhooks.deliver_due()
    assert receiver.received == []
    assert "10.0.0.1, which is not a public address" in WebhookDelivery.objects.get().last_error


def test_switched_off_nothing_is_called_any_more(transactional_db, receiver, settings):
    ended(receiver.url)
    settings.BLAZR_WEBHOOKS = "off"
    webhooks.deliver_due()
    assert receiver.received == []


def test_a_server_that_drips_is_cut_off(receiver, monkeypatch):
    import socket

    monkeypatch.setattr(webhooks, "TOTAL_S", 0.3)
    listener = socket.create_server(("127.0.0.1", 0))

    def drip() -> None:
        connection, _ = listener.accept()
        with connection:
            while True:
                try:
                    connection.sendall(b"H")
                except OSError:
                    return
                time.sleep(0.05)

    thread = threading.Thread(target=drip, daemon=True)
    thread.start()
    started = time.monotonic()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
    with pytest.raises((OSError, webhooks.http.client.HTTPException)):
        webhooks.post(url, "{}", secret=SECRET, message_id="m")
    assert time.monotonic() - started < 60  # it would drip for ever
    thread.join(60)
    listener.close()


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1",
     "255.255.255.255", "::1", "::", "fe80::1%eth0", "fc00::1", "ff02::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1",
     "64:ff9b::a00:1", "2002:7f00:1::"],
)  # fmt: skip
def test_addresses_that_are_nobody_elses(address):
    assert not webhooks.is_public(address)


@pytest.mark.parametrize("address", ["93.184.216.34", "2606:2800:220:1:248:1893:25c8:1946", "::ffff:93.184.216.34"])
def test_public_addresses(address):
    assert webhooks.is_public(address)


@pytest.mark.parametrize(
    "url",
    ["http://example.com/", "ftp://example.com/", "https://", "https://user:pw@example.com/", "https://example.com/#x",
     "https://example.com:99999/", "https://exa mple.com/", "https://example.com/\r\nX: y", "example.com", "https://ü.de/"],
)  # fmt: skip
def test_urls_that_are_no_webhooks(url, settings):
    settings.BLAZR_WEBHOOKS = "public"
    with pytest.raises(InvalidRequest, match=r"webhook\.url"):
        webhooks.checked({"url": url})


@pytest.mark.parametrize("secret", ["", "short", "whsec_" + "A" * 8, "whsec_!!!!", "whsec_" + "A" * 100])
def test_secrets_that_are_none(secret):
    with pytest.raises(InvalidRequest, match=r"webhook\.secret"):
        webhooks.checked({"url": "https://example.com/", "secret": secret})


def test_webhooks_are_off_by_default(settings):
    settings.BLAZR_WEBHOOKS = "off"
    with pytest.raises(UnsupportedFeature, match="BLAZR_WEBHOOKS"):
        webhooks.checked({"url": "https://example.com/"})
