"""Run ``blazr generate``: continue a prompt in this terminal, without a server."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from blazr_site.commands.loading import inspect_to_run, load_to_run
from blazr_site.commands.models import stderr
from inference.errors import BlazrError, InvalidRequest
from inference.llm.llm import LLM
from inference.llm.merging import Merge
from inference.values.sampling_params import SamplingParams
from models_registry.detection.printable import visible

ADAPTER = "adapter"


def run(arguments: argparse.Namespace) -> int:
    """Stream the continuation to standard output; figures go to the error stream."""
    if arguments.prompt is None and arguments.state is None:
        raise InvalidRequest("--prompt or --state is needed: the text, or the saved state, to go on from.")
    prompt = arguments.prompt or ""
    params = SamplingParams(
        max_tokens=arguments.max_tokens,
        temperature=arguments.temperature,
        top_p=arguments.top_p,
        top_k=arguments.top_k,
        seed=arguments.seed,
    )
    llm, options = _load(arguments)
    try:
        state = None if arguments.state is None else llm.read_state(Path(arguments.state), **options)
        # In a terminal a model's text must not steer it; a file or a pipe gets the text as it is.
        shown = visible if sys.stdout.isatty() else str
        sys.stdout.write(prompt)
        for event in llm.events(prompt, params, state=state, **options):
            if event["type"] == "delta":
                sys.stdout.write(shown(event.get("text", "")))
                sys.stdout.flush()
            elif event["type"] == "error":
                sys.stdout.write("\n")
                raise BlazrError.from_dict(event["error"])
            elif event["type"] == "done":
                usage = event["usage"]
                sys.stdout.write("\n")
                sys.stdout.flush()
                decode_s = usage["duration_s"] - usage["ttft_s"]
                rate = (usage["completion_tokens"] - 1) / decode_s if decode_s > 0 else 0.0
                known = "" if state is None else f" ({usage['cached_tokens']} of them from the state)"
                stderr.print(
                    f"[dim]{usage['prompt_tokens']} prompt tokens{known}, {usage['completion_tokens']} generated, "
                    f"first after {usage['ttft_s'] * 1000:.0f} ms, then {rate:.1f} tokens/s[/]",
                    highlight=False,
                )
    finally:
        llm.close()
    return 0


def _load(arguments: argparse.Namespace) -> tuple[LLM, dict[str, Any]]:
    """Load the model with the adapter, and return it with the options of a request."""
    if arguments.adapter is None:
        if arguments.merged:
            raise InvalidRequest("--merged merges an adapter; name one with --adapter.", param="merged")
        return load_to_run(arguments, inspect_to_run(arguments)), {}
    path = Path(arguments.adapter).expanduser()
    if arguments.merged:
        return load_to_run(arguments, inspect_to_run(arguments), merge=Merge(((path, 1.0),))), {}
    return load_to_run(arguments, inspect_to_run(arguments), adapters={ADAPTER: path}), {"adapter": ADAPTER}
