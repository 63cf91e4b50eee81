"""Addresses of this machine."""

from __future__ import annotations

import pytest

from inference.host.addresses import is_loopback


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "[::1]", "127.8.8.8", "::ffff:127.0.0.1"])
def test_loopback(host):
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "::ffff:10.0.0.1", "localhost.example", "*", ""])
def test_beyond_loopback(host):
    assert not is_loopback(host)
