"""GenerationPlan: seeds, the JSON form of a queued job, and the message for a worker."""

from __future__ import annotations

import json

from inference.values.chat_options import ChatOptions
from inference.values.output_format import OutputFormat
from inference.values.plan import GenerationPlan
from inference.values.sampling_params import SamplingParams


def plan(**options: object) -> GenerationPlan:
    values = {"endpoint": "completion", "model": "demo", "prompts": ({"text": "a"}, {"text": "b"})}
    return GenerationPlan(**values | {"params": SamplingParams(n=2)} | options)


def message(asked: GenerationPlan, number: int, **options: object) -> dict:
    return asked.message(number, request_id="r", web_id="w", checkpoint_id="c", deadline=5.0, **options)


def test_a_seed_of_the_client_stays_and_a_missing_one_is_set() -> None:
    assert plan(params=SamplingParams(seed=3)).with_seed(9).params.seed == 3
    assert plan().with_seed(9).params.seed == 9
    assert plan().with_seed().params.seed is not None


def test_the_limit_of_tokens_can_be_dropped() -> None:
    assert plan(params=SamplingParams(max_tokens=3)).without_limit().params.max_tokens is None


def test_choices_of_all_prompts_are_counted() -> None:
    assert plan().num_choices == 4


def test_json_round_trip() -> None:
    asked = plan(
        endpoint="chat",
        chat=ChatOptions(tool_choice="auto"),
        output=OutputFormat("hermes", "think"),
        cache_salt="s",
        logprobs=2,
        params=SamplingParams(stop=("x",), logit_bias={3: 1.0}),
    )
    assert GenerationPlan.from_dict(json.loads(json.dumps(asked.to_dict()))) == asked


def test_prompts_draw_from_seeds_of_their_own() -> None:
    asked = plan(params=SamplingParams(n=2, seed=7))
    first, second = message(asked, 0), message(asked, 1)
    assert first["prompt"] == {"text": "a"} and second["prompt"] == {"text": "b"}
    assert first["params"]["seed"] == 7
    assert second["params"]["seed"] not in (7, 8)  # 7 and 8 are the two choices of the first prompt


def test_a_later_attempt_carries_what_was_delivered() -> None:
    sent = message(plan().with_seed(1), 0, attempt=2, delivered=[[4], [5]])
    assert (sent["attempt"], sent["delivered"], sent["deadline"]) == (2, [[4], [5]], 5.0)


def test_salts_and_tenants_keep_prefix_caches_apart() -> None:
    salts = {
        message(plan(cache_salt=salt), 0, owner=tenant).get("cache_salt")
        for salt in (None, "s")
        for tenant in ("local", "user:1", "key:1", "key:2")
    }
    assert len(salts) == 6, "only keys have prefix caches of their own"
