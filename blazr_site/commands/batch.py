"""Run ``blazr batch run``: compute a file of requests without a server."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO

from rich.text import Text

from blazr_site.commands.loading import inspect_to_run, load_to_run
from blazr_site.commands.models import stderr, step_bar
from inference.batches.line_requests import ENDPOINT_KINDS, InputLine, LineError, read_lines
from inference.batches.local import run_lines
from inference.errors import InvalidRequest
from inference.llm.llm import LLM
from inference.serving.served_models import plan_for_model
from inference.values.served_model import ServedModel
from models_registry.detection.inspection import Inspection

EXIT_SOME_FAILED = 1
MAX_SHOWN = 10
WINDOW_FACTOR = 2
"""Lines in the engine per line that it computes, so that a next line is ready when one ends."""


def run(arguments: argparse.Namespace) -> int:
    """Run the file with ``--model``; the models in the lines are ignored."""
    if not 1 <= arguments.max_num_seqs <= 4096:
        raise InvalidRequest(
            f"--max-num-seqs is {arguments.max_num_seqs}, it must be from 1 to 4096.", param="max_num_seqs"
        )
    source, output = Path(arguments.input), Path(arguments.output)
    errors = Path(arguments.errors) if arguments.errors else output.with_name(output.name + ".errors")
    if len({source.absolute(), output.absolute(), errors.absolute()}) < 3:
        raise InvalidRequest("input, output and errors must be three different files.", param="output")
    total = _check(source)
    done = _completed(output)
    inspection = inspect_to_run(arguments)
    if done:
        stderr.print(Text(f"{len(done):,} lines of {output} have an answer already", style="dim"))
    with _opened(output, "output") as outputs, _opened(errors, "errors") as refusals:
        llm = load_to_run(arguments, inspection, max_num_seqs=arguments.max_num_seqs)
        refusals.truncate(0)  # those of an earlier run; its next try has its own
        with closing(llm):
            num_failed = _run(arguments, llm, inspection, source, done, total, outputs, refusals)
    if not num_failed:
        errors.unlink()
        return 0
    stderr.print(Text(f"{num_failed:,} of {total:,} lines have an error, see {errors}"))
    return EXIT_SOME_FAILED


def _opened(path: Path, param: str, mode: str = "ab") -> IO[bytes]:
    """Open a file that is written.

    Raises:
        InvalidRequest: It can't be.
    """
    try:
        return path.open(mode)
    except OSError as error:
        raise InvalidRequest(f"{path} can't be written: {error.strerror}.", param=param) from None


def _run(
    arguments: argparse.Namespace,
    llm: LLM,
    inspection: Inspection,
    source: Path,
    done: set[str],
    total: int,
    outputs: IO[bytes],
    refusals: IO[bytes],
) -> int:
    """Run the lines that have no output yet; returns the number of lines with an error."""
    served = _served(arguments.model, inspection, llm)
    num_failed = tokens = 0
    started = time.monotonic()
    lines = (line for line in _lines(source, arguments.model) if line.custom_id not in done)
    window = WINDOW_FACTOR * arguments.max_num_seqs
    with step_bar("Lines", total) as (bar, task):
        bar.update(task, completed=len(done))
        for result in run_lines(llm, lines, resolve=partial(plan_for_model, model=served), window=window):
            file = refusals if result.is_error else outputs
            file.write(result.payload.encode() + b"\n")
            # No fsync: a killed process loses no flushed line, and a lost line is run again.
            file.flush()
            num_failed += result.is_error
            tokens += result.completion_tokens
            rate = tokens / max(time.monotonic() - started, 1e-3)
            bar.update(task, advance=1, note=f"{rate:.0f} tokens/s" + (f", {num_failed} failed" if num_failed else ""))
    return num_failed


def _check(source: Path) -> int:
    """Validate the whole file; returns the number of lines.

    Raises:
        InvalidRequest: The file can't be read, or lines are wrong.
    """
    problems: list[str] = []
    seen: dict[str, int] = {}
    try:
        with source.open("rb") as file:
            for item in read_lines(file, *ENDPOINT_KINDS):
                if isinstance(item, LineError):
                    problems.append(f"line {item.line}: {item.message}")
                elif item.custom_id in seen:
                    problems.append(
                        f"line {item.number}: custom_id {item.custom_id[:60]!r} is line {seen[item.custom_id]}'s."
                    )
                else:
                    seen[item.custom_id] = item.number
                if len(problems) == MAX_SHOWN:
                    break
    except OSError as error:
        raise InvalidRequest(f"{source} can't be read: {error.strerror}.", param="input") from None
    if problems:
        raise InvalidRequest(f"{source} can't be run: {' '.join(problems)}", param="input")
    if not seen:
        raise InvalidRequest(f"{source} has no requests.", param="input")
    return len(seen)


def _completed(output: Path) -> set[str]:
    """Return the custom_ids that an earlier run has finished; a half-written last line is cut off.

    Raises:
        InvalidRequest: The file is no output of a batch, or can't be read and written.
    """
    if not output.exists():
        return set()
    found: set[str] = set()
    end = 0
    with _opened(output, "output", "r+b") as file:
        for raw in file:
            if not raw.endswith(b"\n"):
                break
            try:
                row = json.loads(raw)
                row["response"]  # a file of requests has ids, too
                found.add(row["custom_id"])
            except (ValueError, KeyError, TypeError):
                raise InvalidRequest(
                    f"{output} is there and is no output of a batch; choose another file.", param="output"
                ) from None
            end += len(raw)
        file.truncate(end)
    return found


def _lines(source: Path, model: str) -> Iterator[InputLine]:
    with source.open("rb") as file:
        for item in read_lines(file, *ENDPOINT_KINDS):
            if isinstance(item, InputLine):
                yield replace(item, body={"model": model[:256], **item.body})


def _served(name: str, inspection: Inspection, llm: LLM) -> ServedModel:
    """Return the model in the form that the API's checks take."""
    return ServedModel(
        checkpoint_id="",
        name=name,
        created=0,
        vocab_size=inspection.spec.vocab_size,
        max_model_len=llm.max_model_len,
        tokenizer=inspection.tokenizer,
        version="",
        hidden_size=inspection.spec.hidden_size,
    )
