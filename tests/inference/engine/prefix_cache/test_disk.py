"""States outlive the engine: found again, bounded, and nothing that isn't sound is ever used."""

from __future__ import annotations

import os
import time
from dataclasses import replace

import numpy as np
import pytest

from inference.engine.engine import Engine
from inference.engine.prefix_cache.disk import DiskTier
from inference.errors import InvalidRequest
from tests.inference.engine.fakes import expected_tokens, make_engine, make_spec, request, run
from tests.inference.engine.prefix_cache.test_cache import tokens_of

KINDS = ["paged", "slots", "hybrid"]


class Life:
    """An engine over a cache directory; ``ask`` checks the tokens."""

    def __init__(self, directory, kind, *, key="model", budget=1 << 30, **options):
        self.disk = DiskTier(directory, key, budget)
        values = {"max_model_len": 2100, "num_blocks": 400, "block_size": 16, "num_snapshot_slots": 16}
        small = make_engine(kind, **(values | options))
        self.engine = Engine(small._runner._network, make_spec(kind), small.config, disk=self.disk)
        self.spec = make_spec(kind)

    def ask(self, prompt, *, salt="", max_tokens=4):
        source = replace(request("r", prompt, max_tokens=max_tokens), cache_salt=salt)
        entry = run(self.engine, source)["r"]
        assert entry.tokens == expected_tokens(self.spec, prompt, max_tokens)
        return entry.finals[0].num_cached_tokens

    def flush(self):
        self.engine._prefix_cache.flush()
        return self.engine.stats().prefix_cache

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.engine.close()


def files(directory):
    return [path for path in directory.rglob("*") if path.is_file()]


@pytest.mark.parametrize("kind", KINDS)
def test_a_system_prompt_is_found_after_a_restart(kind, tmp_path):
    system = tokens_of(0, 2000)
    with Life(tmp_path, kind, max_num_batched_tokens=512) as life:
        assert life.ask(system + tokens_of(1, 20)) == 0
        assert life.ask(system + tokens_of(2, 20)) >= 1936
    with Life(tmp_path, kind, max_num_batched_tokens=512) as life:
        assert life.ask(system + tokens_of(3, 20)) == 2000
        assert life.engine.stats().prefix_cache.num_disk_tokens == 2000
        assert life.ask(system + tokens_of(3, 20)) == 2019
        assert life.engine.stats().prefix_cache.num_disk_tokens == 2000, "the second comes from memory"
    with Life(tmp_path, kind, max_num_batched_tokens=512) as life:
        assert life.ask(system + tokens_of(3, 20)) == 2019


@pytest.mark.parametrize("kind", KINDS)
def test_requests_that_begin_alike_share_what_is_read_for_them(kind, tmp_path, monkeypatch):
    prompt = tokens_of(8, 400)
    with Life(tmp_path, kind) as life:
        life.ask(prompt)
    reads = []
    read = DiskTier._read_payload
    monkeypatch.setattr(DiskTier, "_read_payload", lambda *given: reads.append(given[1]) or read(*given))
    with Life(tmp_path, kind) as life:
        for number in range(8):
            life.engine.add_request(request(f"r{number}", prompt, max_tokens=4))
        life.disk.flush()
        found = run(life.engine)
        assert all(entry.tokens == expected_tokens(life.spec, prompt, 4) for entry in found.values())
        assert len(set(reads)) == len(reads) > 0
        assert not life.disk._in_use, "nothing stays in memory behind the requests"


@pytest.mark.parametrize("error", [MemoryError, PermissionError])
def test_a_file_that_cannot_be_read_is_a_miss(error, tmp_path, monkeypatch):
    prompt = tokens_of(8, 400)
    with Life(tmp_path, "hybrid") as life:
        life.ask(prompt)

    def fails(*given):
        raise error

    with Life(tmp_path, "hybrid") as life:
        with monkeypatch.context() as patch:
            patch.setattr(np, "fromfile", fails)
            assert life.ask(prompt) == 0
        life.flush()
        assert life.ask(prompt) == 399
    with Life(tmp_path, "hybrid") as life:
        assert life.ask(prompt) == 399, "the files are there again"


@pytest.mark.parametrize("kind", KINDS)
def test_a_chat_goes_on_after_each_restart(kind, tmp_path):
    conversation, earlier = tokens_of(4, 100), 0
    for turn in range(4):
        with Life(tmp_path, kind) as life:
            cached = life.ask(conversation, max_tokens=10)
            assert cached >= 0.95 * earlier
            answer = expected_tokens(life.spec, conversation, 10)
            earlier = len(conversation) + len(answer)
            conversation = conversation + answer + tokens_of(50 + turn, 30)


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_evicted_from_memory_comes_from_disk(kind, tmp_path):
    with Life(tmp_path, kind, num_snapshot_slots=6, num_blocks=132) as life:
        prompt = tokens_of(5, 1000)
        life.ask(prompt)
        life.flush()
        for seed in range(3):
            life.ask(tokens_of(60 + seed, 1500))
        assert life.ask(prompt) == 999
        assert life.engine.stats().prefix_cache.num_disk_tokens > 0


@pytest.mark.parametrize("kind", KINDS)
def test_models_and_salts_are_kept_apart(kind, tmp_path):
    prompt = tokens_of(6, 200)
    with Life(tmp_path, kind) as life:
        life.ask(prompt, salt="alice")
    with Life(tmp_path, kind, key="another") as life:
        assert life.ask(prompt, salt="alice") == 0
    with Life(tmp_path, kind) as life:
        assert life.ask(prompt, salt="bob") == 0
        assert life.ask(prompt, salt="alice") == 199
    assert not any(b"alice" in path.read_bytes() for path in files(tmp_path))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "header"])
def test_damaged_files_are_removed_and_never_used(kind, damage, tmp_path):
    prompt = tokens_of(7, 300)
    with Life(tmp_path, kind) as life:
        life.ask(prompt)
    before = files(tmp_path)
    for path in before:
        content = bytearray(path.read_bytes())
        if damage == "cut":
            content = content[:-5]
        elif damage == "flip":
            content[-40] ^= 1
        elif damage == "empty":
            content = bytearray()
        else:
            content[10:30] = b"x" * 20
        path.write_bytes(content)
    with Life(tmp_path, kind) as life:
        assert life.ask(prompt) == 0
        assert life.flush().num_disk_corrupt > 0
    with Life(tmp_path, kind) as life:
        # A file is read, and its damage found, only when all that it needs is sound: a block not without a snapshot.
        assert life.ask(prompt) in (0, 299)
    with Life(tmp_path, kind) as life:
        assert life.ask(prompt) == 299


def test_one_damaged_block_ends_the_match_there(tmp_path):
    prompt = tokens_of(8, 320)
    with Life(tmp_path, "paged") as life:
        life.ask(prompt)
    [victim] = [path for path in files(tmp_path) if ".160.block" in path.name]
    content = bytearray(victim.read_bytes())
    content[-20] ^= 255
    victim.write_bytes(content)
    with Life(tmp_path, "paged") as life:
        assert life.ask(prompt) == 144
    with Life(tmp_path, "paged") as life:
        assert life.ask(prompt) == 319


def test_foreign_files_are_removed_but_not_what_others_write(tmp_path):
    with Life(tmp_path, "hybrid") as life:
        life.ask(tokens_of(9, 100))
    [home] = {path.parent for path in files(tmp_path)}
    (home / "notes.txt").write_text("hello")
    (home / ("0" * 32 + ".16.block")).write_bytes(b"blazrPC1 but no more")
    fresh, stale = home / "a.16.block.7.tmp", home / "b.16.block.7.tmp"
    fresh.write_bytes(b"half")
    stale.write_bytes(b"half")
    os.utime(stale, (time.time() - 3600,) * 2)
    outside = tmp_path / "precious"
    outside.write_text("keep")
    (home / "link").symlink_to(outside)
    with Life(tmp_path, "hybrid") as life:
        assert life.ask(tokens_of(9, 100)) == 99
    names = {path.name for path in home.iterdir()}
    assert not names & {"notes.txt", "link", stale.name, "0" * 32 + ".16.block"} and fresh.name in names
    assert outside.read_text() == "keep"


@pytest.mark.parametrize("kind", KINDS)
def test_the_budget_holds_and_ends_go_before_beginnings(kind, tmp_path):
    budget = 60_000
    with Life(tmp_path, kind, budget=budget) as life:
        for seed in range(12):
            life.ask(tokens_of(80 + seed, 500))
            life.flush()
        stats = life.flush()
        assert sum(path.stat().st_size for path in files(tmp_path)) <= budget
        assert stats.num_disk_removed > 0 and stats.disk_bytes <= budget
    with Life(tmp_path, kind, budget=budget) as life:
        assert life.ask(tokens_of(91, 500)) == 499, "the latest is there"


def test_a_file_that_vanished_is_a_miss(tmp_path):
    prompt = tokens_of(10, 300)
    with Life(tmp_path, "hybrid") as life:
        life.ask(prompt)
    with Life(tmp_path, "hybrid") as life:
        for path in files(tmp_path):
            path.unlink()
        assert life.ask(prompt) == 0
        assert life.ask(prompt) == 299


def test_only_the_owner_may_read(tmp_path):
    with Life(tmp_path / "cache", "hybrid") as life:
        life.ask(tokens_of(11, 100))
    found = files(tmp_path)
    assert found and all(path.stat().st_mode & 0o077 == 0 for path in [*found, found[0].parent])


def test_an_abort_while_reading(tmp_path):
    prompt = tokens_of(12, 500)
    with Life(tmp_path, "hybrid") as life:
        life.ask(prompt)
    with Life(tmp_path, "hybrid") as life:
        life.engine.add_request(request("a", prompt, max_tokens=4))
        assert life.engine.abort_request("a")
        assert [output.finish_reason for output in life.engine.step()] == ["abort"]
        assert not life.engine.has_unfinished()
        assert life.ask(prompt) == 499


def test_a_directory_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidRequest, match="can't be used"):
        DiskTier(tmp_path / "file", "model", 1 << 20)


def test_a_full_queue_is_no_error(tmp_path, monkeypatch):
    monkeypatch.setattr("inference.engine.prefix_cache.disk.MAX_PENDING_BYTES", 100)
    with Life(tmp_path, "hybrid") as life:
        life.ask(tokens_of(13, 600))
        assert life.flush().num_disk_skipped > 0
        assert life.ask(tokens_of(13, 600)) == 599
