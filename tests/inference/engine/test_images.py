"""The rows of pictures are computed once, by themselves, and go to the rows of a step that are theirs."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from inference.engine import images as module
from inference.engine.config import EngineConfig
from inference.engine.engine import Engine
from inference.engine.images import ImageRows, whole_spans
from inference.engine.request import FinishReason, ImageSpan
from inference.engine.scheduler import ScheduledRequest, SchedulerOutput
from tests.inference.engine.fakes import FakeNetwork, expected_tokens, make_spec, request, run

WIDTH = 2


def encoder(pixels: torch.Tensor) -> torch.Tensor:
    """As many rows as the picture is high, each with its number and the picture's colour."""
    return torch.stack([torch.arange(pixels.shape[0]).float(), pixels[:, 0, 0].float()], 1)


def span(start: int, count: int, colour: int, *, is_whole: bool = False) -> ImageSpan:
    pixels = np.full((count, 1, 3), colour, dtype=np.uint8)
    return ImageSpan(start, count, bytes([colour]), pixels, is_whole)


def share(spans, computed: int, count: int) -> ScheduledRequest:
    request = SimpleNamespace(source=SimpleNamespace(images=tuple(spans)))
    return ScheduledRequest(request, count, computed, False)


def test_rows_of_chunks_that_cut_pictures():
    rows = ImageRows(encoder)
    step = SchedulerOutput(
        [share([], 5, 1), share([span(2, 4, 7), span(8, 3, 8)], 3, 6), share([span(0, 2, 7)], 0, 1)], 1
    )
    found = rows.rows_of_step(step)
    assert found.places.tolist() == [1, 2, 3, 6, 7]
    assert found.values.tolist() == [[1, 7], [2, 7], [3, 7], [0, 8], [0, 7]]
    assert rows.num_encoded == 2, "equal digests are one picture"


def test_a_step_without_pictures_has_none():
    rows = ImageRows(encoder)
    assert rows.rows_of_step(SchedulerOutput([share([], 0, 4)], 0)) is None
    assert rows.rows_of_step(SchedulerOutput([share([span(2, 4, 7)], 0, 2)], 0)) is None
    assert rows.rows_of_step(SchedulerOutput([share([span(2, 4, 7)], 6, 2)], 0)) is None
    assert rows.num_encoded == 0


def test_old_rows_make_way_and_are_computed_again(monkeypatch):
    monkeypatch.setattr(module, "MAX_KEPT_BYTES", 2 * 4 * WIDTH * 4)
    rows = ImageRows(encoder)
    for colour in (1, 2, 1, 3, 1, 2):
        rows.rows_of_step(SchedulerOutput([share([span(0, 4, colour)], 0, 4)], 0))
    assert rows.num_encoded == 4, "only the second one was the oldest when the third came"


@pytest.mark.parametrize(("computed", "count", "expected"), [(0, 9, ((2, 6),)), (0, 2, ()), (7, 2, ())])
def test_spans_that_see_each_other(computed, count, expected):
    spans = [span(2, 4, 7, is_whole=True), span(7, 2, 8)]
    assert whole_spans(share(spans, computed, count)) == expected


@pytest.mark.parametrize("kind", ["paged", "hybrid"])
def test_a_picture_without_memory_ends_its_own_request_only(kind):
    def fails(pixels: torch.Tensor) -> torch.Tensor:
        raise MemoryError

    spec = make_spec(kind)
    config = EngineConfig(1000, 1200, 9, block_size=4, max_num_seqs=8, num_snapshot_slots=4)
    network = FakeNetwork(spec, block_size=4)
    engine = Engine(network, spec, config, vision=fails)
    picture = span(840, 7, 1)
    seeing = replace(request("seeing", [1, 2] * 420 + [5] * 7 + [3], max_tokens=5), images=(picture,))
    others = [request(f"r{number}", [number, 2, 3], max_tokens=40) for number in range(5)]
    found = run(engine, seeing, *others)
    final = found["seeing"].finals[0]
    assert final.finish_reason is FinishReason.ERROR and "for an image of this request" in str(final.error)
    for source in others:
        assert found[source.request_id].tokens == expected_tokens(spec, source.prompt_token_ids, 40)
    assert engine.stats().num_preemptions == 0
    again = run(engine, replace(seeing, images=()))["seeing"]
    assert again.tokens == expected_tokens(spec, seeing.prompt_token_ids, 5), "no wrong rows were kept"
