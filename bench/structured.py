"""python -m bench.structured: what grammars cost: a decode step of 32 requests that follow one, against 32 free ones.

One engine, random weights; a round is free, bound, free again, each 32 requests with prompts of 32 tokens, prefix cache
off. The control is the second free run against the first: a ratio says no more than it allows. The vocabulary is
Llama 3's for llama-1b, otherwise the beginning of cl100k_base, cut to the model's size. Each bound request has a JSON
schema of its own whose output is longer than the run. Random weights hardly ever end a string, so all requests, free
ones too, have a bias for the quotation mark: strings are of ten tokens or so, and about half of all tokens lie outside
of them. Other text costs otherwise: a string with ``maxLength`` is several times dearer than one without.

Random weights want a token that the grammar refuses most of the time; a model that was asked for JSON hardly ever does.
``--follow`` measures that end: all requests, free ones too, get logits in which one token of a text that matches their
schema is the likeliest.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import dataclass, replace
from typing import Any

import torch
from rich.console import Console

from bench.child import random_prompts
from bench.figures import interval_of
from bench.prefix_cache import MODELS as SMALL_MODELS
from bench.prefix_cache import llama_135m, random_network
from inference.engine.config import EngineConfig
from inference.engine.engine import Engine
from inference.engine.request import EngineRequest
from inference.modelling.spec import ModelSpec
from inference.modelling.specs.layers import MLPSpec
from inference.text.grammars.compiler import GrammarCompiler
from inference.text.tokenisation.tokenizer import Tokenizer, load_tokenizer
from inference.values.grammar import Grammar
from inference.values.sampling_params import SamplingParams
from inference.values.token_constraint import TokenConstraint
from inference.values.tokenizer_spec import TokenizerSpec


def llama_1b() -> ModelSpec:
    """16 layers of attention and MLP, and Llama 3's vocabulary."""
    small = llama_135m()
    layer = small.layers[0]
    mixer = replace(layer.token_mixer, num_heads=32, num_kv_heads=8)
    layers = (replace(layer, token_mixer=mixer, channel_mixer=MLPSpec(8192)),) * 16
    return replace(small, hidden_size=2048, vocab_size=128_256, layers=layers)


MODELS = {**SMALL_MODELS, "llama-1b": llama_1b}
VOCABULARIES = {"llama-1b": "llama3"}
PROMPT_TOKENS = 32
WARM_UP_STEPS = 4
QUOTE_BIAS = 9.0


@dataclass(frozen=True, slots=True)
class Run:
    """Seconds of each decode step, and the tokens of one request."""

    steps: list[float]
    output: list[int]


def schema(number: int) -> dict[str, Any]:
    """A list of records; different for each number."""
    record = {
        "type": "object",
        "properties": {
            f"name_{number}": {"type": "string"},
            "kind": {"enum": [f"kind {choice} of {number}" for choice in range(8)]},
            "count": {"type": "integer", "minimum": 0, "maximum": 1000 + number},
            "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 4},
            "score": {"type": "number"},
        },
        "required": [f"name_{number}", "kind", "count"],
        "additionalProperties": False,
    }
    return {"type": "array", "items": record, "minItems": 400}


def generate(
    engine: Engine, constraints: list[TokenConstraint] | None, *, batch: int, num_tokens: int, seed: int, **params: Any
) -> Run:
    """Decode ``batch`` requests together; steps count when all have some tokens."""
    for number, prompt in enumerate(random_prompts(batch, PROMPT_TOKENS, 49_000, seed=seed)):
        sampling = SamplingParams(max_tokens=num_tokens, ignore_eos=True, seed=seed + number, **params)
        constraint = None if constraints is None else constraints[number]
        engine.add_request(EngineRequest(str(number), tuple(prompt), sampling, constraint=constraint))
    counts = dict.fromkeys(map(str, range(batch)), 0)
    steps: list[float] = []
    output: list[int] = []
    while engine.has_unfinished():
        counts_before = min(counts.values())
        started = time.perf_counter()
        outputs = engine.step()
        seconds = time.perf_counter() - started
        for item in outputs:
            if item.error is not None:
                raise item.error
            counts[item.request_id] += len(item.new_token_ids)
            output += item.new_token_ids if item.request_id == "0" else ()
        if counts_before > WARM_UP_STEPS and len(outputs) == batch:
            steps.append(seconds)
    return Run(steps, output)


class Follower(torch.nn.Module):
    """A network whose greedy output is a given text for each row; the work stays that of the network.

    Args:
        network: Gives everything but the choice.
        scripts: Token ids of each row's output.
    """

    def __init__(self, network: Any, scripts: list[list[int]]) -> None:
        super().__init__()
        self._network = network
        self._scripts = torch.tensor(scripts)
        self.step = 0

    def forward(self, batch: Any, states: Any) -> torch.Tensor:
        hidden: torch.Tensor = self._network(batch, states)
        return hidden

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """The network's, with the next token of each script on top; prompts fit into one step, so rows are requests."""
        logits: torch.Tensor = self._network.compute_logits(hidden)
        logits[torch.arange(len(logits)), self._scripts[: len(logits), self.step]] = 1000.0
        self.step += 1
        return logits


def script(tokenizer: Tokenizer, constraint: TokenConstraint, number: int, length: int) -> list[int]:
    """The first tokens of a text that matches ``schema(number)``, long ones first; the constraint goes along."""
    by_bytes = {tokenizer.token_bytes(token_id): token_id for token_id in range(tokenizer.vocab_size)}
    text = "the quick brown fox jumps over a lazy dog while nobody looks and the night is young"
    records = [
        {
            f"name_{number}": text[at % 40 : at % 40 + 30],
            "kind": f"kind {at % 8} of {number}",
            "count": 37 * at % 1000,
            "tags": text[: 5 + at % 30].split(" ")[-4:],
            "score": at / 4,
        }
        for at in range(number, number + length)
    ]
    rest = json.dumps(records).encode()
    ids: list[int] = []
    for _ in range(length):
        known = (by_bytes.get(rest[:size]) for size in range(16, 0, -1))
        ids.append(next(token_id for token_id in known if token_id is not None and constraint.allows(token_id)))
        constraint.accept(ids[-1])
        rest = rest[len(tokenizer.token_bytes(ids[-1])) :]
    return ids


def mask_seconds(constraints: list[TokenConstraint], output: list[int]) -> float:
    """Processor seconds of one mask on the way of an output, alone and one after the other."""
    constraint = constraints[0]
    seconds = 0.0
    for token_id in output:
        started = time.thread_time()
        constraint.mask()
        seconds += time.thread_time() - started
        constraint.accept(token_id)
    return seconds / len(output)


def make_constraints(tokenizer: Tokenizer, batch: int) -> list[TokenConstraint]:
    """One for each request, each of a grammar of its own."""
    compiler = GrammarCompiler(tokenizer)
    try:
        return [
            compiler.constraints(Grammar("json_schema", schema(number)), [()], stop_ids=())[0]
            for number in range(batch)
        ]
    finally:
        compiler.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["llama-135m"], choices=MODELS)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--follow", action="store_true", help="a model that wants what its schema asks for; greedy")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    given = parser.parse_args()
    console = Console(width=150)
    for name in given.models:
        spec = MODELS[name]()
        network = random_network(spec, getattr(torch, given.dtype))
        tokenizer = load_tokenizer(
            TokenizerSpec("builtin", spec.vocab_size, name=VOCABULARIES.get(name, "cl100k_base"))
        )
        config = EngineConfig(
            max_model_len=1024,
            num_blocks=2200,
            num_state_slots=given.batch + 2,
            max_num_seqs=given.batch,
            max_num_batched_tokens=max(512, given.batch * PROMPT_TOKENS),
            dtype=given.dtype,
            prefix_cache=False,
            invalid_token_ids=tokenizer.invalid_token_ids,
        )
        follower = None
        if given.follow:
            constraints = make_constraints(tokenizer, given.batch)
            scripts = [script(tokenizer, item, at, given.tokens) for at, item in enumerate(constraints)]
            follower = network = Follower(network, scripts)
        engine = Engine(network, spec, config)
        (quote,) = tokenizer.encode('"', add_special_tokens=False)
        run = {
            "batch": given.batch,
            "num_tokens": given.tokens,
            "temperature": given.temperature,
            "logit_bias": {quote: QUOTE_BIAS},
        }
        if given.follow:
            run["temperature"] = 0.0
        free_ms: list[float] = []
        ratios: list[float] = []
        controls: list[float] = []
        for number in range(given.rounds):
            runs: list[Run] = []
            for followed in (None, make_constraints(tokenizer, given.batch), None):
                if follower is not None:
                    follower.step = 0
                runs.append(generate(engine, followed, seed=100 * number, **run))
            first, bound, again = runs
            before, between, after = (statistics.median(found.steps) for found in (first, bound, again))
            free_ms += [1000 * before, 1000 * after]
            ratios.append(2 * between / (before + after))
            controls.append(after / before)
        mask_ms = 1000 * mask_seconds(make_constraints(tokenizer, 1), bound.output)
        console.print(
            f"{name:12} {spec.vocab_size:,} ids, batch {given.batch}: a free step {interval_of(free_ms)} ms; "
            f"bound / free {interval_of(ratios)}, control {interval_of(controls)}; "
            f"a mask takes {mask_ms:.3f} ms of processor time, {given.batch * mask_ms:.2f} ms a step",
            highlight=False,
        )
        engine.close()


if __name__ == "__main__":
    main()
