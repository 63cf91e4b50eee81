"""Compare going on from a saved state with reading the text again: ``python -m bench.states``.

A document of ``--tokens`` random tokens, then questions of 20 tokens. Each question is asked twice: from the
state's file, whose reading is part of the time, and cold. Each question has a salt of its own, so that nothing comes
from the prefix cache. Prints seconds to the first token, and whether both texts are equal. With ``--http`` the state is
one of ``POST /v1/states``, and the questions are streamed completions of a server.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.table import Table

from bench.child import random_prompts
from bench.http_path import serve
from bench.weights import CHECKPOINTS, make_checkpoint
from inference.host.units import format_bytes
from inference.llm.llm import LLM
from inference.llm.options import LLMOptions
from inference.llm.state_file import PromptState
from inference.values.sampling_params import SamplingParams
from models_registry.detection.inspection import inspect_checkpoint

QUESTION = 20
PARAMS = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)


def generate(llm: LLM, prompt: Sequence[int], salt: str, state: PromptState | None = None) -> tuple[float, list[int]]:
    """Return seconds from the request to its first token, and all tokens."""
    started, first, tokens = time.perf_counter(), 0.0, list[int]()
    for event in llm.events(prompt, PARAMS, state=state, cache_salt=salt):
        if event["type"] == "error":
            raise RuntimeError(event["error"]["message"])
        if event.get("token_ids") and not tokens:
            first = time.perf_counter() - started
        tokens += event.get("token_ids", ())
    return first, tokens


def measure(llm: LLM, num_tokens: int, num_questions: int, vocab_size: int, path: Path) -> Table:
    """Save a document's state, ask all questions both ways and return a table."""
    document = random_prompts(1, num_tokens, vocab_size)[0]
    questions = random_prompts(num_questions + 1, QUESTION, vocab_size)[1:]
    started = time.perf_counter()
    state = llm.save_state(document)
    read_s = time.perf_counter() - started
    size = llm.write_state(state, path)
    generate(llm, questions[0], "warm-up", llm.read_state(path))
    warm, cold, num_equal = [], [], 0
    for number, question in enumerate(questions):
        started = time.perf_counter()
        read = llm.read_state(path)
        file_s = time.perf_counter() - started
        first, tokens = generate(llm, question, f"warm {number}", read)
        warm.append(file_s + first)
        first, expected = generate(llm, [*document, *question], f"cold {number}")
        cold.append(first)
        num_equal += tokens == expected
    return report(f"{num_tokens:,} tokens read in {read_s:.1f} s, file of {format_bytes(size)}", warm, cold, num_equal)


def stream(client: httpx.Client, body: dict[str, Any]) -> tuple[float, list[int]]:
    """Return seconds from a completion's request to its first token, and all tokens."""
    started, first, tokens = time.perf_counter(), 0.0, list[int]()
    body = body | {"stream": True, "temperature": 0, "max_tokens": 8, "ignore_eos": True, "return_token_ids": True}
    with client.stream("POST", "/v1/completions", json=body) as response:
        if response.status_code != 200:
            raise SystemExit(f"the server answered {response.status_code}: {response.read()[:1000]!r}")
        for line in response.iter_lines():
            if not line.startswith("data: {"):
                continue
            found = json.loads(line[6:])["choices"][0].get("token_ids") or ()
            if found and not tokens:
                first = time.perf_counter() - started
            tokens += found
    return first, tokens


def measure_http(directory: Path, num_tokens: int, num_questions: int, vocab_size: int, dtype: str) -> Table:
    """``measure`` over HTTP."""
    document = random_prompts(1, num_tokens, vocab_size)[0]
    questions = random_prompts(num_questions + 1, QUESTION, vocab_size)[1:]
    with serve(directory, dtype=dtype) as site, httpx.Client(base_url=site.url, timeout=900) as client:
        model = client.get("/v1/models").json()["data"][0]["id"]
        started = time.perf_counter()
        saved = client.post("/v1/states", json={"name": "document", "model": model, "prompt": document})
        if saved.status_code != 200:
            raise SystemExit(f"the state wasn't saved: {saved.text[:1000]}")
        read_s, size = time.perf_counter() - started, saved.json()["bytes"]
        base = {"model": model}
        stream(client, base | {"state": "document", "prompt": questions[0], "cache_salt": "warm-up"})
        warm, cold, num_equal = [], [], 0
        for number, question in enumerate(questions):
            first, tokens = stream(
                client, base | {"state": "document", "prompt": question, "cache_salt": f"warm {number}"}
            )
            warm.append(first)
            first, expected = stream(client, base | {"prompt": [*document, *question], "cache_salt": f"cold {number}"})
            cold.append(first)
            num_equal += tokens == expected
    return report(
        f"over HTTP: {num_tokens:,} tokens read in {read_s:.1f} s, file of {format_bytes(size)}", warm, cold, num_equal
    )


def report(title: str, warm: Sequence[float], cold: Sequence[float], num_equal: int) -> Table:
    """Return a table of seconds to the first token."""
    table = Table(title=title, box=None)
    for heading in ("first token", "median", "least", "most"):
        table.add_column(heading, justify="left" if heading == "first token" else "right")
    for name, seconds in (("from the state", warm), ("cold", cold)):
        figures = (statistics.median(seconds), min(seconds), max(seconds))
        table.add_row(name, *(f"{figure:.3f} s" for figure in figures))
    ratio = statistics.median(cold) / statistics.median(warm)
    table.caption = f"{ratio:.0f} times as fast; {num_equal} of {len(cold)} texts are equal"
    return table


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default="mamba2", choices=sorted(CHECKPOINTS), help="shape (default %(default)s)")
    parser.add_argument("--tokens", type=int, default=20_000, help="of the document (default %(default)s)")
    parser.add_argument("--questions", type=int, default=10, help="(default %(default)s)")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16", "auto"))
    parser.add_argument("--state-dtype", default="auto", choices=("auto", "float32", "bfloat16"), help="not over HTTP")
    parser.add_argument("--http", action="store_true", help="through a server")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "blazr-bench")
    given = parser.parse_args()
    directory = make_checkpoint(given.model, given.cache / "checkpoints")
    found = inspect_checkpoint(directory)
    if given.http:
        if given.state_dtype != "auto":
            parser.error("--state-dtype is for the model in this process; leave --http out")
        sizes = (given.tokens, given.questions, found.spec.vocab_size)
        Console().print(measure_http(directory, *sizes, given.dtype))
        return
    length = given.tokens + QUESTION + 16
    options = LLMOptions(dtype=given.dtype, state_dtype=given.state_dtype, max_num_seqs=2, max_model_len=length)
    llm = LLM.load(found.spec, found.tokenizer, found.weight_paths, options)
    try:
        with tempfile.TemporaryDirectory() as place:
            path = Path(place) / "document.state"
            Console().print(measure(llm, given.tokens, given.questions, found.spec.vocab_size, path))
    finally:
        llm.close()


if __name__ == "__main__":
    main()
