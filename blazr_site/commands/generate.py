"""``blazr generate``: continue a prompt in this terminal, without a server."""

from __future__ import annotations

import argparse
import sys

from blazr_site.commands.models import add_model_arguments, inspect_to_run, load_to_run, stderr
from inference.errors import BlazrError
from inference.values.sampling_params import SamplingParams

HELP = "continue a prompt in the terminal"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command; the defaults are the original's, not OpenAI's."""
    add_model_arguments(parser)
    parser.add_argument("--prompt", required=True, help="the text to continue")
    parser.add_argument("--max-tokens", type=int, default=100, help="most tokens to generate (default 100)")
    parser.add_argument("--temperature", type=float, default=0.7, help="0 is greedy (default 0.7)")
    parser.add_argument("--top-p", type=float, default=0.9, help="nucleus share (default 0.9)")
    parser.add_argument("--top-k", type=int, default=40, help="likeliest tokens kept, 0: all (default 40)")
    parser.add_argument("--seed", type=int, default=None, help="fix the draws")
    parser.add_argument("--cpu", action="store_true", help="use the CPU even if there is a GPU")
    parser.add_argument("--dtype", default="auto", choices=("auto", "float32", "bfloat16", "float16"))
    parser.add_argument("--quant", default="none", choices=("none", "int8", "int4"), help="quantise while loading")
    parser.add_argument(
        "--speculative", metavar="HOW", help="guess ahead: ngram or draft:MODEL (named as --model), and perhaps ,k=N"
    )


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
