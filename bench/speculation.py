"""python -m bench.speculation: tokens per second with draft tokens against none.

Two engines with the same weights; a round is without, with, and without speculation again; decoding only, prefix cache
off. The control is the second run without against the first: what it strays from 1 is the machine, not speculation.
Random weights
don't continue a text that repeats itself, so the texts are made:

    loop      greedy, from weights of the same shapes whose head knows one thing: which of 37 tokens follows which. So
              the text repeats itself every 37 tokens and, after the first time, every draft token holds. The best case.
    letters   drawn from six tokens: the last two tokens have always occurred before, and what followed then says
              little. The worst case: there is always something to draft, and it is mostly wrong.
    random    drawn from the whole vocabulary: hardly ever a draft token.

``--how draft:short`` asks a draft model instead: the same kind of network with a fifth of the layers, whose loop is the
same and whose other weights are its own. So on loop every draft token holds, and on random hardly any.
``--how mtp`` asks a head for multi-token prediction of one layer of attention, which knows the loop too.

With ``--dtype float32`` the tokens of both engines are compared (bfloat16 rounds a verification and a decode
differently, so that a near tie may fall otherwise).
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from dataclasses import dataclass, replace
from typing import Any

import torch
from rich.console import Console

from bench.child import random_prompts
from bench.figures import interval_of
from bench.prefix_cache import MODELS, VOCAB, random_network
from inference.engine.config import EngineConfig
from inference.engine.engine import Engine
from inference.engine.request import EngineRequest
from inference.engine.speculation.draft_runner import DraftModel
from inference.engine.speculation.setup import Speculation
from inference.modelling.backends.backend import bind_backend, pack_weights
from inference.modelling.layers.linear import Linear
from inference.modelling.network import HybridForCausalLM
from inference.modelling.prediction_head import PredictionHead
from inference.modelling.spec import LayerSpec, ModelSpec, PredictionHeadSpec
from inference.modelling.specs.layers import AttentionSpec, MLPSpec
from inference.modelling.specs.parts import NormSpec, RopeSpec
from inference.values.sampling_params import SamplingParams
from inference.values.speculative_options import SpeculativeOptions

TEXTS: dict[str, dict[str, Any]] = {
    "loop": {"temperature": 0.0},
    "letters": {"temperature": 2.0, "logit_bias": dict.fromkeys(range(1000, 1006), 100.0), "top_k": 6},
    "random": {"temperature": 1.0},
}


PERIOD = 37
WARM_UP = 6
"""Tokens that both engines generate before: their decode is recorded then, and none of them repeats itself."""

EMBEDDING_SCALE = 100.0


@dataclass(frozen=True, slots=True)
class Run:
    """What one run gave.

    Attributes:
        rate: Tokens per second, all requests together.
        outputs: Tokens by request.
    """

    rate: float
    outputs: dict[str, list[int]]


def looping_network(spec: ModelSpec, dtype: torch.dtype) -> HybridForCausalLM:
    """Random layers that hardly move a large embedding, and a head that answers each token with its successor."""
    network = random_network(replace(spec, tie_word_embeddings=False), dtype)
    table = network.embed_tokens.weight
    head = Linear(spec.hidden_size, spec.vocab_size)
    tokens = torch.arange(spec.vocab_size)
    successors = tokens // PERIOD * PERIOD + (tokens % PERIOD + 1) % PERIOD
    in_range = successors < spec.vocab_size
    head.weight.data = torch.zeros_like(table)
    head.weight.data[successors[in_range]] = table.data[tokens[in_range]]
    bind_backend(network).pack(head)
    network.lm_head = head
    table.data.mul_(EMBEDDING_SCALE)
    return network


def head_spec(spec: ModelSpec) -> PredictionHeadSpec:
    """A head of one layer of attention and MLP."""
    norm, heads = NormSpec(), spec.hidden_size // 64
    attention = AttentionSpec(heads, math.gcd(heads, 4), 64, 0.125, rope=RopeSpec(10000.0, 64))
    layer = LayerSpec(attention, norm, channel_mixer=MLPSpec(1536), channel_norm=norm)
    sizes = (spec.hidden_size, spec.vocab_size, spec.max_position_embeddings)
    return PredictionHeadSpec("huggingface", "prediction_head", *sizes, (layer,), norm)


def make_head(spec: ModelSpec, text: str, dtype: torch.dtype) -> PredictionHead:
    """Random weights; on the loop the head passes the next token's embedding on, whose successor the logits give."""
    with torch.device("meta"):
        head = PredictionHead(head_spec(spec))
    head.to_empty(device="cpu")
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in head.parameters():
            if parameter.dim() == 1:
                parameter.fill_(1.0)
            else:
                parameter.normal_(generator=generator).mul_(parameter.shape[-1] ** -0.5)
        if text == "loop":
            head.eh_proj.weight.zero_()
            head.eh_proj.weight[:, : spec.hidden_size] = EMBEDDING_SCALE * torch.eye(spec.hidden_size)
    head.to(dtype)
    pack_weights(head)
    return head


def shortened(spec: ModelSpec) -> ModelSpec:
    return replace(spec, layers=spec.layers[: max(1, len(spec.layers) // 5)])


def generate(engine: Engine, text: str, batch: int, num_tokens: int, seed: int) -> Run:
    """Decode ``batch`` requests together; the clock starts when all have their first token."""
    outputs: dict[str, list[int]] = {}
    for number, prompt in enumerate(random_prompts(batch, 32, VOCAB, seed=seed)):
        params = SamplingParams(max_tokens=num_tokens, ignore_eos=True, seed=seed + number, **TEXTS[text])
        outputs[str(number)] = []
        engine.add_request(EngineRequest(str(number), tuple(prompt), params))

    def step() -> None:
        for output in engine.step():
            outputs[output.request_id] += output.new_token_ids

    while not all(outputs.values()):
        step()
    before, started = sum(map(len, outputs.values())), time.perf_counter()
    while engine.has_unfinished():
        step()
    return Run((sum(map(len, outputs.values())) - before) / (time.perf_counter() - started), outputs)


def make_engine(
    network: HybridForCausalLM,
    spec: ModelSpec,
    dtype: str,
    options: SpeculativeOptions | None,
    draft: HybridForCausalLM | None = None,
    head: PredictionHead | None = None,
) -> Engine:
    """With speculation or without; ``draft`` is a network of ``shortened(spec)``, ``head`` one of ``head_spec``."""
    config = EngineConfig(
        max_model_len=1024,
        num_blocks=2200,
        num_state_slots=34,
        max_num_seqs=32,
        dtype=dtype,  # type: ignore[arg-type]
        prefix_cache=False,
        num_spare_slots=8 if options is not None and spec.state_bytes_per_sequence() else 0,
    )
    if options is None:
        return Engine(network, spec, config)
    model = None if draft is None else DraftModel(draft, shortened(spec), config)
    return Engine(network, spec, config, speculation=Speculation(options, model, head))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["llama-135m", "mamba2-130m"], choices=MODELS)
    parser.add_argument("--texts", nargs="+", default=list(TEXTS), choices=TEXTS)
    parser.add_argument("--batches", nargs="+", type=int, default=[1])
    parser.add_argument("--tokens", type=int, default=160)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--how", default="ngram", help="as blazr's --speculative: ngram, mtp or draft:short")
    given = parser.parse_args()
    options = SpeculativeOptions.parse(given.how)
    if options.draft_model not in ("", "short"):
        parser.error(f"--how: the draft model is {options.draft_model!r}; the only one here is short.")
    console = Console(width=150)
    for name in given.models:
        spec = MODELS[name]()
        for text in given.texts:
            make_network, dtype = looping_network if text == "loop" else random_network, getattr(torch, given.dtype)
            network = make_network(spec, dtype)
            draft = make_network(shortened(spec), dtype) if options.draft_model else None
            head = make_head(spec, text, dtype) if options.method == "mtp" else None
            plain = make_engine(network, spec, given.dtype, None)
            for batch in given.batches:
                # One engine for each text: the acceptance rates that it learns are part of what is measured.
                drafting = make_engine(network, spec, given.dtype, options, draft, head)
                for engine in (plain, drafting):
                    generate(engine, text, batch, WARM_UP, 1)
                ratios, controls, plains = [], [], []
                for number in range(given.rounds):
                    first = generate(plain, text, batch, given.tokens, 100 * number)
                    second = generate(drafting, text, batch, given.tokens, 100 * number)
                    again = generate(plain, text, batch, given.tokens, 100 * number)
                    if given.dtype == "float32":
                        assert first.outputs == second.outputs, "the texts differ"
                    plains += [first.rate, again.rate]
                    ratios.append(2 * second.rate / (first.rate + again.rate))
                    controls.append(again.rate / first.rate)
                stats = drafting.stats().speculation
                assert stats is not None
                console.print(
                    f"{name:12} {text:8} batch {batch:2}: {statistics.median(plains):5.0f} tokens/s without; "
                    f"ratio {interval_of(ratios)}, control {interval_of(controls)}; "
                    f"{stats.num_accepted} of {stats.num_proposed} draft tokens held",
                    highlight=False,
                )


if __name__ == "__main__":
    main()
