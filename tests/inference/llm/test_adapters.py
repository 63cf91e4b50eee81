"""Adapters in an LLM: many in one batch, coming and going, apart from each other in caches and states."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from inference.errors import CheckpointError, Conflict, InvalidRequest, UnknownModel, UnsupportedFormat
from inference.llm.llm import LLM
from inference.values.sampling_params import SamplingParams
from inference.values.speculative_options import SpeculativeOptions
from tests.inference.llm.adapter_writing import factors, write_adapter
from tests.inference.llm.harness import OPTIONS, Checkpoint, ids_of, message, run, write_tokenizer

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)


def load(checkpoint: Checkpoint, directory: Path | None = None, count: int = 0, **options: Any) -> LLM:
    adapters = {}
    for number in range(count):
        assert directory is not None
        path = adapters[f"a{number}"] = directory / f"a{number}"
        if not path.exists():
            write_adapter(path, number)
    return LLM.load(
        checkpoint.spec, checkpoint.tokenizer, checkpoint.files, replace(OPTIONS, **options), adapters=adapters
    )


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("adapters")


@pytest.fixture(scope="module")
def llm(checkpoint: Checkpoint, directory: Path) -> Iterator[LLM]:
    llm = load(checkpoint, directory, 12, max_adapters=4)
    yield llm
    llm.close()


def tokens(llm: LLM, adapter: str | None, prompt: Any = "the quick brown fox", **options: Any) -> list[int]:
    options |= {} if adapter is None else {"adapter": adapter}
    events = list(llm.events(prompt, GREEDY, **options))
    assert events[-1]["type"] == "done", events[-1]
    return ids_of(events)


def asked(request_id: str, adapter: str | None, text: str = "the quick brown fox") -> Any:
    found = message(request_id, prompt={"text": text}, temperature=0.0, max_tokens=12)
    return found if adapter is None else found | {"adapter": adapter}


def test_eight_adapters_in_one_batch_give_what_each_gives_alone(checkpoint: Checkpoint, directory: Path) -> None:
    llm = load(checkpoint, directory, 8)
    try:
        alone = {name: tokens(llm, name) for name in (*llm.adapters.facts(), None)}
        assert len({tuple(found) for found in alone.values()}) == 9
        together = run(llm, *(asked(str(name), name) for name in alone))
        assert {name: ids_of(together[str(name)]) for name in alone} == alone
        assert llm.stats()["adapters"]["num_loads"] == 8
    finally:
        llm.close()


def test_rows_without_an_adapter_are_the_same_to_the_bit(checkpoint: Checkpoint, llm: LLM) -> None:
    plain = load(checkpoint, max_adapters=0)
    try:
        wanted = run(plain, message("p", logprobs=3), message("q", logprobs=3))
        found = run(llm, message("p", logprobs=3), message("q", logprobs=3), asked("a", "a0"), asked("b", "a1"))
    finally:
        plain.close()
    for name in "pq":
        assert [event.get("logprobs") for event in found[name]] == [event.get("logprobs") for event in wanted[name]]


def test_none_of_many_requests_is_answered_by_the_wrong_adapter(checkpoint: Checkpoint, directory: Path) -> None:
    llm = load(checkpoint, directory, 20, max_adapters=4)
    draw = random.Random(5)
    try:
        names = [*llm.adapters.facts(), None]
        prompts = ["the quick brown fox", "jumps over the lazy dog"]
        wanted = {(name, text): tokens(llm, name, text) for name in names for text in prompts}
        for _ in range(5):
            chosen = [(draw.choice(names), draw.choice(prompts)) for _ in range(30)]
            events = run(llm, *(asked(str(at), *one) for at, one in enumerate(chosen)))
            for at, one in enumerate(chosen):
                assert ids_of(events[str(at)]) == wanted[one], one
        stats = llm.stats()["adapters"]
        assert stats["num_resident"] <= 4 and stats["num_evictions"] > 20 and stats["num_in_use"] == 0
    finally:
        llm.close()


def test_the_prefix_cache_never_mixes_adapters(llm: LLM) -> None:
    text, salt = "over and over again, nothing else begins like this one", {"cache_salt": "mine"}
    first = tokens(llm, "a0", text, **salt)
    for options in ({"adapter": "a1"}, {}):
        events = list(llm.events(text, GREEDY, **salt, **options))
        assert events[-1]["usage"]["cached_tokens"] == 0
    events = list(llm.events(text, GREEDY, adapter="a0", **salt))
    assert events[-1]["usage"]["cached_tokens"] > 16 and ids_of(events) == first


def test_one_content_under_two_names_shares_state(llm: LLM, tmp_path: Path) -> None:
    llm.adapters.add("twin", write_adapter(tmp_path / "twin", 3))
    text = "héllo wörld " * 8
    first = tokens(llm, "a3", text)
    events = list(llm.events(text, GREEDY, adapter="twin"))
    assert ids_of(events) == first and events[-1]["usage"]["cached_tokens"] > 16
    llm.adapters.remove("twin")
    with pytest.raises(UnknownModel, match="no adapter 'twin'"):
        tokens(llm, "twin")


def test_states_are_bound_to_their_adapter(llm: LLM, tmp_path: Path) -> None:
    state = llm.save_state("the quick brown fox", adapter="a0")
    wanted = tokens(llm, "a0", "the quick brown fox jumps")
    assert tokens(llm, "a0", " jumps", state=state) == wanted
    for name, words in (("a1", "through the adapter"), (None, "through no adapter")):
        with pytest.raises(InvalidRequest, match=words):
            tokens(llm, name, " jumps", state=state)
    llm.write_state(state, tmp_path / "state")
    assert tokens(llm, "a0", " jumps", state=llm.read_state(tmp_path / "state", adapter="a0")) == wanted
    with pytest.raises(InvalidRequest, match="through the adapter"):
        llm.read_state(tmp_path / "state")


def test_ngram_speculation_gives_the_adapters_tokens(checkpoint: Checkpoint, directory: Path, llm: LLM) -> None:
    drafting = load(checkpoint, directory, 3, speculative=SpeculativeOptions(method="ngram"))
    try:
        text = "the lazy dog the lazy dog the lazy dog the lazy"
        events = run(drafting, *(asked(str(name), name, text) for name in ("a0", "a1", None)))
        for name in ("a0", "a1", None):
            assert ids_of(events[str(name)]) == tokens(llm, name, text)
    finally:
        drafting.close()


def test_more_adapters_than_places_wait_in_order(checkpoint: Checkpoint, directory: Path) -> None:
    llm = load(checkpoint, directory, 3, max_adapters=1)
    try:
        alone = {name: tokens(llm, name) for name in ("a0", "a1", "a2")}
        events = run(llm, *(asked(name, name) for name in alone), asked("again", "a0"))
        assert {name: ids_of(events[name]) for name in alone} == alone
        assert ids_of(events["again"]) == alone["a0"]
    finally:
        llm.close()


def test_a_waiting_request_can_be_aborted(checkpoint: Checkpoint, directory: Path) -> None:
    llm = load(checkpoint, directory, 2, max_adapters=1)
    try:
        for name in ("a0", "a1"):
            llm.add(llm.prepare(asked(name, name)))
        for _ in range(20):
            llm.step()
            if llm.stats()["adapters"]["num_in_use"]:
                break
        assert llm.abort("a1")
        while llm.has_unfinished():
            llm.step()
        assert llm.stats()["adapters"]["num_waiting"] == llm.stats()["adapters"]["num_in_use"] == 0
    finally:
        llm.close()


def test_budget_of_bytes(checkpoint: Checkpoint, directory: Path) -> None:
    llm = load(checkpoint, directory, 4)
    size = llm.adapters.facts()["a0"].num_bytes
    llm.close()
    llm = load(checkpoint, directory, 4, adapter_bytes=2 * size)
    try:
        run(llm, *(asked(f"r{number}", f"a{number}") for number in range(4)))
        stats = llm.stats()["adapters"]
        assert stats["num_resident"] == 2 and stats["resident_bytes"] == 2 * size
        assert llm.memory_bytes()["adapters"] == 2 * size
    finally:
        llm.close()
    llm = load(checkpoint, directory, 4, adapter_bytes=size - 1)
    try:
        with pytest.raises(InvalidRequest, match="adapter_bytes is"):
            tokens(llm, "a0")
    finally:
        llm.close()


def test_a_file_that_changed_is_refused(llm: LLM, tmp_path: Path) -> None:
    llm.adapters.add("changing", write_adapter(tmp_path / "changing", 77))
    (tmp_path / "changing" / "adapter_model.safetensors").unlink()
    events = list(llm.events("the quick", GREEDY, adapter="changing"))
    assert events[-1]["type"] == "error" and events[-1]["error"]["class"] == Conflict.__name__
    llm.adapters.remove("changing")
    assert llm.stats()["adapters"]["num_waiting"] == 0


def test_a_norm_is_refused_before_a_request_names_it(llm: LLM, tmp_path: Path) -> None:
    norm = {"base_model.model.model.norm.weight": torch.full((32,), 2.0)}
    path = write_adapter(tmp_path / "norm", tensors=factors(1) | norm, modules_to_save=["norm"])
    with pytest.raises(UnsupportedFormat, match=r"replaces base_model\.model\.model\.norm\.weight, which is no matrix"):
        llm.adapters.add("norm", path)


def test_values_that_are_no_numbers_fail_their_requests_alone(llm: LLM, tmp_path: Path) -> None:
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
    llm.adapters.add(
        "nan", write_adapter(tmp_path / "nan", tensors=factors(1) | {name: torch.full((4, 32), torch.nan)})
    )
    events = list(llm.events("the quick", GREEDY, adapter="nan"))
    assert events[-1]["type"] == "error" and name in events[-1]["error"]["message"]
    llm.adapters.remove("nan")
    assert llm.stats()["adapters"]["num_waiting"] == 0 and ids_of(list(llm.events("the quick", GREEDY)))


def test_an_adapter_of_another_tokenizer_is_refused(llm: LLM, tmp_path: Path) -> None:
    path = write_adapter(tmp_path / "same", 1)
    write_tokenizer(path / "tokenizer.json")
    llm.adapters.check(path)
    other = (path / "tokenizer.json").read_text().replace('"the":', '"teh":').replace('"Ġthe":', '"the":')
    (path / "tokenizer.json").write_text(other.replace('"a":', '"zz":').replace('"b":', '"a":'))
    with pytest.raises(UnsupportedFormat, match="another tokenizer"):
        llm.adapters.check(path)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("layers.0.self_attn.q_proj.lora_B.weight", torch.zeros(64, 4), r"shape \[64, 4\]; it must be \[32, 4\]"),
        ("layers.0.self_attn.q_proj.lora_A.weight", torch.zeros(4, 16), r"shape \[4, 16\]; it must be \[4, 32\]"),
        ("layers.0.self_attn.q_proj.lora_A.weight", torch.zeros(5, 32), "rank 5, adapter_config.json says 4"),
        ("layers.0.self_attn.q_proj.lora_B.weight", None, "no lora_B.weight for model.layers.0.self_attn.q_proj"),
        ("layers.7.self_attn.q_proj.lora_A.weight", torch.zeros(4, 32), "no lora_B.weight"),
        ("layers.0.self_attn.q_proj.lora_A.weight", torch.zeros(4, 32, dtype=torch.int8), "stored as I8"),
    ],
)
def test_wrong_tensors_are_refused_by_name(
    llm: LLM, tmp_path: Path, name: str, value: torch.Tensor | None, words: str
) -> None:
    tensors = factors(0)
    tensors[f"base_model.model.model.{name}"] = value
    tensors = {key: tensor for key, tensor in tensors.items() if tensor is not None}
    with pytest.raises(CheckpointError, match=words):
        llm.adapters.add("bad", write_adapter(tmp_path / "bad", tensors=tensors))
    assert "bad" not in llm.adapters.facts()


def test_no_room_for_adapters_is_said(checkpoint: Checkpoint, tmp_path: Path) -> None:
    llm = load(checkpoint, max_adapters=0)
    try:
        with pytest.raises(InvalidRequest, match="max_adapters"):
            llm.adapters.add("a", write_adapter(tmp_path / "a"))
        with pytest.raises(InvalidRequest, match="max_adapters"):
            tokens(llm, "a")
    finally:
        llm.close()


def finish(llm: LLM) -> None:
    while llm.has_unfinished():
        llm.step()


def test_an_adapter_is_read_ahead_and_unloaded(checkpoint: Checkpoint, directory: Path, tmp_path: Path) -> None:
    llm = load(checkpoint, directory, 3, max_adapters=2)
    try:
        pinned = llm.adapters.pin("a0")
        finish(llm)
        facts = llm.adapters.facts()["a0"]
        assert pinned.result(0) is None
        assert (facts.is_resident, facts.is_pinned, facts.num_requests) == (True, True, 0) and facts.last_used_at
        for name in ("a1", "a2", "a1"):
            tokens(llm, name)
        assert llm.stats()["adapters"]["num_loads"] == 4
        llm.adapters.add("twin", directory / "a0")  # other names of the same files
        llm.adapters.pin("twin")
        llm.adapters.unpin("a0").result(0)
        finish(llm)
        assert llm.adapters.facts()["a0"].is_resident and not llm.adapters.facts()["a0"].is_pinned
        llm.adapters.remove("twin")
        finish(llm)
        facts = llm.adapters.facts()["a0"]
        assert (facts.is_resident, facts.is_pinned, facts.last_used_at) == (False, False, 0)
        llm.adapters.remove("a1")
        finish(llm)
        assert llm.stats()["adapters"]["num_resident"] == 0
        broken = llm.adapters.add("broken", write_adapter(tmp_path / "broken", 3))
        (tmp_path / "broken" / "adapter_model.safetensors").unlink()
        lost = llm.adapters.pin(broken.name)
        finish(llm)
        with pytest.raises(Conflict, match="add it again"):
            lost.result(0)
        assert not llm.adapters.facts()["broken"].is_pinned
    finally:
        llm.close()


def is_resident(llm: LLM, name: str) -> bool:
    finish(llm)
    found: bool = llm.adapters.facts()[name].is_resident
    return found


def test_a_name_that_goes_takes_its_pin_along(checkpoint: Checkpoint, directory: Path) -> None:
    llm = load(checkpoint, directory, 2, max_adapters=2)
    adapters = llm.adapters
    try:
        for name in ("twin", "third"):  # other names of the same files
            adapters.add(name, directory / "a0")
            adapters.pin(name)
        adapters.remove("third")
        assert is_resident(llm, "a0")  # for the twin
        adapters.add("twin", directory / "a0")
        assert is_resident(llm, "a0") and adapters.facts()["twin"].is_pinned  # the same files again
        adapters.add("twin", directory / "a1")
        assert not is_resident(llm, "a0")
        adapters.pin("a1")
        assert is_resident(llm, "a1")
        adapters.remove("a1")
        assert not is_resident(llm, "twin")
    finally:
        llm.close()


def test_orders_that_were_called_off_are_no_pins(checkpoint: Checkpoint, directory: Path) -> None:
    llm = load(checkpoint, directory, 1, max_adapters=1)
    adapters = llm.adapters
    try:
        adapters.add("twin", directory / "a0")
        assert adapters.pin("twin").cancel()
        adapters.pin("a0")
        assert is_resident(llm, "a0")
        assert adapters.pin("a0").cancel()  # the first one stands
        assert is_resident(llm, "a0") and adapters.facts()["a0"].is_pinned
        adapters.remove("a0")
        assert not is_resident(llm, "twin")
    finally:
        llm.close()


def test_a_pin_comes_before_a_removal_or_not_at_all(llm: LLM, directory: Path, monkeypatch) -> None:
    adapters = llm.adapters
    write_adapter(directory / "late", 7)
    facts = adapters.add("late", directory / "late")
    removals: list[threading.Thread] = []
    check = adapters._pool.check

    def removed_meanwhile(adapter: Any) -> None:
        removals.append(threading.Thread(target=adapters.remove, args=("late",)))
        removals[-1].start()
        removals[-1].join(0.2)  # it is done by then, unless the pin comes first
        check(adapter)

    monkeypatch.setattr(adapters._pool, "check", removed_meanwhile)
    adapters.pin("late")
    removals[0].join(60)
    finish(llm)
    assert "late" not in adapters.facts() and facts.digest not in adapters._pool.uses()
