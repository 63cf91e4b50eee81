"""The engine's device code on CUDA: same tokens as on the CPU."""

from __future__ import annotations

import pytest
import torch

from inference.engine.sampling.sampler import Sampler, draw
from inference.engine.sampling.sampling_state import SamplingState
from inference.values.sampling_params import SamplingParams
from tests.inference.engine.fakes import expected_tokens, make_engine, make_spec, request, run
from tests.inference.engine.sampling.reference_sampler import rows_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.mark.parametrize("kind", ["paged", "slots", "hybrid"])
def test_tokens_under_preemption_and_chunks(kind):
    spec = make_spec(kind)
    engine = make_engine(kind, device="cuda", num_blocks=12, num_state_slots=5, max_num_batched_tokens=9)
    sources = [request(f"r{i}", range(i, 2 * i + 3), max_tokens=20, logprobs=1, prompt_logprobs=1) for i in range(8)]
    found = run(engine, *sources)
    for source in sources:
        assert found[source.request_id].tokens == expected_tokens(spec, source.prompt_token_ids, 20)


def test_draws_agree_with_the_cpu():
    logits = torch.randn(64, 50_000, generator=torch.Generator().manual_seed(1)) * 4
    rows = []
    for i in range(64):
        params = SamplingParams(seed=i, temperature=0.7, top_p=0.9 if i % 2 else 1.0, top_k=40 * (i % 3))
        rows.append(SamplingState(params, (), (), ()))
    same = draw(logits, rows) == draw(logits.cuda(), rows).cpu()
    # exp differs in the last bit between devices, so a draw at a border may fall on the other side.
    assert int(same.sum()) >= 62


def test_a_bad_row_fails_alone():
    logits = torch.zeros(2, 50, device="cuda")
    logits[0, 3] = float("nan")
    state = SamplingState(SamplingParams(temperature=0.0, logprobs=2, repetition_penalty=1.5), (), [1], [2])
    output = Sampler((4,), logits.device).sample(logits.clone, [state, state])
    bad, good = rows_of(output)
    assert "numerical_error" in bad.message and good.token_id == 0
