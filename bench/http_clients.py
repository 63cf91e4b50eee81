"""A lean client for streamed completions: it must cost little beside the server that it measures."""

from __future__ import annotations

import json
import os
import select
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from bench.child import add_unshown, random_prompts, stream_figures

SILENCE_S = 120.0

Arrivals = list[tuple[float, int]]
Line = tuple[float, bytes]


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a server is asked for a streamed completion of token ids, and how its tokens are counted.

    Attributes:
        body: Makes it of the prompt and the number of tokens wanted.
        count: Tokens that a chunk of the stream shows.
        total: Tokens that it says there were in all, if it is the chunk that says so.
    """

    path: str
    body: Callable[[list[int], int], dict[str, Any]]
    count: Callable[[dict[str, Any]], int]
    total: Callable[[dict[str, Any]], int | None] = lambda chunk: None


def _blazr_body(prompt: list[int], new: int) -> dict[str, Any]:
    return {
        "model": "bench",
        "prompt": prompt,
        "max_tokens": new,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def _llama_body(prompt: list[int], new: int) -> dict[str, Any]:
    return {
        "prompt": prompt,
        "n_predict": new,
        "temperature": 0,
        "top_k": 1,
        "samplers": ["top_k"],
        "ignore_eos": True,
        "stream": True,
        "return_tokens": True,
        "cache_prompt": False,
    }


def _count_words(chunk: dict[str, Any]) -> int:
    """All but 256 of a benchmark's tokens are words that begin with " w" (``bench.tokenizer_files``)."""
    texts = [choice["text"] for choice in chunk.get("choices", ()) if choice.get("text")]
    return sum(max(1, text.count(" w")) for text in texts)


DIALECTS = {
    "blazr-server": Dialect(
        "/v1/completions", _blazr_body, _count_words, lambda chunk: (chunk.get("usage") or {}).get("completion_tokens")
    ),
    # Tokens that end in the middle of a character are never shown, but its last chunk counts them.
    "llama-server": Dialect(
        "/completion",
        _llama_body,
        lambda chunk: len(chunk.get("tokens") or ()),
        lambda chunk: chunk.get("tokens_predicted") if chunk.get("stop") else None,
    ),
}


def exchange(port: int, path: str, bodies: Sequence[dict[str, Any]]) -> tuple[float, list[list[Line]]]:
    """POST all bodies at once, each on a connection of its own, and read the answers to their ends.

    While anything comes it is only noted: taking it apart would take the processors' time from the server.

    Returns:
        When they were sent, and of each answer when which of its lines was complete, headers first.

    Raises:
        RuntimeError: An answer's status isn't 200, or nothing came for two minutes.
    """
    requests = [json.dumps(body).encode() for body in bodies]
    pieces: dict[int, list[Line]] = {}
    order: list[int] = []
    with ExitStack() as stack:
        stack.enter_context(_in_batch_class())
        poll = stack.enter_context(select.epoll())
        connections: dict[int, socket.socket] = {}
        started = time.perf_counter()
        for body in requests:
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            head = (
                f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            )
            connection.sendall(head.encode() + body)
            connections[connection.fileno()] = connection
            pieces[connection.fileno()] = []
            order.append(connection.fileno())
            poll.register(connection, select.EPOLLIN)
        while connections:
            ready = poll.poll(SILENCE_S)
            if not ready:
                raise RuntimeError(f"{len(connections)} of {len(order)} answers stopped: nothing for {SILENCE_S} s")
            for number, _ in ready:
                piece = connections[number].recv(1 << 16)
                if piece:
                    pieces[number].append((time.perf_counter(), piece))
                else:
                    poll.unregister(number)
                    del connections[number]
    return started, [_lines(pieces[number]) for number in order]


@contextmanager
def _in_batch_class() -> Iterator[None]:
    """Clients elsewhere would not interrupt the server at every token that it writes to them; here neither."""
    policy = os.sched_getscheduler(0)
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    try:
        yield
    finally:
        os.sched_setscheduler(0, policy, os.sched_param(0))


def _lines(pieces: list[Line]) -> list[Line]:
    whole = b"".join(piece for _, piece in pieces)
    if not whole.startswith(b"HTTP/1.1 200 "):
        raise RuntimeError(whole.decode(errors="replace")[:1000])
    lines, rest = [], b""
    for at, piece in pieces:
        *complete, rest = (rest + piece).split(b"\n")
        lines += [(at, line) for line in complete]
    return lines


def _arrivals(dialect: Dialect, lines: list[Line], new: int) -> Arrivals:
    chunks = [(at, json.loads(line[6:])) for at, line in lines if line.startswith(b"data: {")]
    arrivals = [(at, count) for at, chunk in chunks if (count := dialect.count(chunk))]
    shown = sum(count for _, count in arrivals)
    tokens = next((total for _, chunk in chunks if (total := dialect.total(chunk)) is not None), shown)
    add_unshown(arrivals, tokens)  # parts of a character show nothing until it is whole
    if tokens != new:
        raise RuntimeError(f"a stream had {tokens} tokens instead of {new}")
    return arrivals


def _together(port: int, dialect: Dialect, prompts: list[list[int]], new: int) -> dict[str, Any]:
    started, responses = exchange(port, dialect.path, [dialect.body(prompt, new) for prompt in prompts])
    return stream_figures(started, [_arrivals(dialect, lines, new) for lines in responses])


def run_clients(
    port: int, dialect: Dialect, *, clients: int, prompt: int, new: int, vocab_size: int, seed: int
) -> dict[str, Any]:
    """All clients at once, one request each; figures as ``bench.child.stream_figures`` gives them."""
    prompts = random_prompts(clients, prompt, vocab_size, seed)
    return _together(port, dialect, prompts, new)


def first_token_s(port: int, dialect: Dialect, *, repeats: int, prompt: int, vocab_size: int, seed: int) -> float:
    """Median seconds to the first token, one request at a time."""
    times = []
    for item in random_prompts(repeats, prompt, vocab_size, seed):
        times.append(_together(port, dialect, [item], 2)["ttft_s"][0])
    return sorted(times)[len(times) // 2]
