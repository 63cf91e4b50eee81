"""Compare one GGUF file here and in llama.cpp: ``python -m bench.one_file FILE``.

Both compute the file's own codes; with ``--ours`` another form of the same model is computed here. They take turns
within each round, as the speed of a shared machine changes within minutes. Prints tokens per second with the ratios of
the rounds, the memory of the weights beside the file's size, and the perplexity of both over the same tokens of
Python's help pages.
"""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path

from bench.__main__ import positive
from bench.disturbance import family, undisturbed_rounds
from bench.environments import Environments
from bench.figures import interval_of
from bench.processes import Child
from blazr_site.commands.quality import text_tokens
from inference.host.units import format_bytes
from inference.llm.options import LLMOptions
from inference.llm.quality import measure_quality
from models_registry.detection.inspection import inspect_checkpoint

TASKS = {
    "decode, 1 sequence": ("decode", {"batch": 1, "prompt": 128, "new": 48}),
    "decode, 8 sequences": ("decode", {"batch": 8, "prompt": 128, "new": 32}),
    "prefill of 512": ("prefill", {"tokens": 512}),
}
WINDOW = 512


def take_turns(ours: Child, other: Child, rounds: int) -> None:
    """Measure each task in alternating order and print one line per task."""

    def own() -> list[int]:
        return [pid for child in (ours, other) for pid in family(child.process.pid)]

    for label, (name, values) in TASKS.items():

        def both(seed: int, name: str = name, values: dict[str, int] = values) -> dict[str, float]:
            first, second = (ours, other) if seed % 2 else (other, ours)
            rates = {child: child.run(name, **values, seed=seed)["tokens_per_s"] for child in (first, second)}
            return {"ours": rates[ours], "other": rates[other]}

        both(0)  # warms up
        found = undisturbed_rounds(own, both, range(1, rounds + 1))
        if not found:
            print(f"{label}: other work disturbed every round")
            continue
        rates, others = ([measured[side] for measured in found] for side in ("ours", "other"))
        print(
            f"{label}, {len(found)} rounds: {interval_of(rates, 1)} tokens/s, llama.cpp {interval_of(others, 1)}, "
            f"ratio {interval_of([a / b for a, b in zip(rates, others, strict=True)])}"
        )


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--ours", type=Path, help="a directory of blazr quantise, instead of the file")
    parser.add_argument("--rounds", type=positive, default=5)
    parser.add_argument("--tokens", type=positive, default=16384, help="of the text; 2,048 leave errors above 1 %%")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "blazr-bench")
    given = parser.parse_args()
    file = given.file.resolve()
    own = (given.ours or file).resolve()
    inspection = inspect_checkpoint(own)
    tokens, text = text_tokens(inspection, None, given.tokens)
    python = Environments(given.cache, print).python("llama-cpp")
    with contextlib.ExitStack() as stack:
        other = Child("llama-cpp", python=python, file=str(file))
        stack.callback(other.close)
        ours = Child("engine", own)
        stack.callback(ours.close)
        print(f"file {format_bytes(file.stat().st_size)}, weights {format_bytes(ours.facts['weights_bytes'])}")
        take_turns(ours, other, given.rounds)
        theirs = other.run("perplexity", token_ids=tokens, window=WINDOW)["perplexity"]
    expanded, kept = measure_quality(
        inspection.spec, inspection.weight_paths, tokens, ["auto"], options=LLMOptions(dtype="bfloat16"), window=WINDOW
    )
    print(
        f"perplexity over {kept.num_tokens} predictions of {text}: {kept.perplexity:.3f} in codes, "
        f"{expanded.perplexity:.3f} expanded to bfloat16, llama.cpp {theirs:.3f} "
        f"({kept.perplexity / theirs - 1:+.2%}, {expanded.perplexity / theirs - 1:+.2%})"
    )


if __name__ == "__main__":
    main()
