"""Run ``blazr generate``: continue a prompt in this terminal, without a server."""

from __future__ import annotations

import argparse
import sys

from blazr_site.commands.loading import inspect_to_run, load_to_run
from blazr_site.commands.models import stderr
from inference.errors import BlazrError
from inference.values.sampling_params import SamplingParams


def run(arguments: argparse.Namespace) -> int:
    """Stream the continuation to standard output; figures go to the error stream."""
    params = SamplingParams(
        max_tokens=arguments.max_tokens,
        temperature=arguments.temperature,
        top_p=arguments.top_p,
        top_k=arguments.top_k,
        seed=arguments.seed,
    )
    llm = load_to_run(arguments, inspect_to_run(arguments))
    try:
        sys.stdout.write(arguments.prompt)
        for event in llm.generate(arguments.prompt, params):
            if event["type"] == "delta":
                sys.stdout.write(event.get("text", ""))
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
                stderr.print(
                    f"[dim]{usage['prompt_tokens']} prompt tokens, {usage['completion_tokens']} generated, "
                    f"first after {usage['ttft_s'] * 1000:.0f} ms, then {rate:.1f} tokens/s[/]",
                    highlight=False,
                )
    finally:
        llm.close()
    return 0
