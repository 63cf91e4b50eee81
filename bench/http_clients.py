"""A lean asyncio client for streamed completions: it must cost little beside the server that it measures."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass

from bench.child import random_prompts


@dataclass(frozen=True, slots=True)
class StreamTimes:
    """One stream: seconds to the first token, seconds in all, tokens received."""

    first_token_s: float
    total_s: float
    tokens: int


async def stream_completion(port: int, model: str, prompt: list[int], new: int) -> StreamTimes:
    """POST one streamed completion and count its tokens."""
    body = json.dumps(
        {
            "model": model,
            "prompt": prompt,
            "max_tokens": new,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "return_token_ids": True,
        }
    ).encode()
    started = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    writer.write(head.encode() + body)
    first, tokens, status = 0.0, 0, b""
    async for line in reader:
        if not status:
            status = line
            if b" 200 " not in status:
                raise RuntimeError((status + await reader.read()).decode(errors="replace"))
        elif line.startswith(b"data: {"):
            if not first:
                first = time.perf_counter() - started
            tokens += count_tokens(line)
    writer.close()
    if tokens != new:
        raise RuntimeError(f"a stream had {tokens} tokens instead of {new}")
    return StreamTimes(first, time.perf_counter() - started, tokens)


def count_tokens(line: bytes) -> int:
    """Number of token ids in one ``data:`` line."""
    chunk = json.loads(line[6:])
    return sum(len(choice.get("token_ids") or ()) for choice in chunk.get("choices", ()))


async def run_clients(port: int, model: str, clients: int, prompt: int, new: int, vocab_size: int) -> list[StreamTimes]:
    """All clients at once, one request each."""
    prompts = random_prompts(clients, prompt, vocab_size, seed=clients)
    return list(await asyncio.gather(*(stream_completion(port, model, item, new) for item in prompts)))


async def first_tokens(port: int, model: str, repeats: int, prompt: int, vocab_size: int) -> list[float]:
    """Seconds to the first token, one request at a time."""
    times = []
    for item in random_prompts(repeats, prompt, vocab_size, seed=11):
        times.append((await stream_completion(port, model, item, 2)).first_token_s)
    return times
