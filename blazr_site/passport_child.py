"""Make the passport of a checkpoint, as the child process of a job (``job_child``)."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from blazr_site.commands.quality import help_pages, tokens_to_read
from blazr_site.job_child import device_and_dtype, run
from blazr_site.reference_logits import reason_against, reference_ids, reference_logits
from inference.engine.model_runner import TORCH_DTYPES
from inference.errors import BlazrError
from inference.llm.llm import LLM
from inference.llm.logits import compare_logits, text_logits
from inference.llm.options import LLMOptions
from inference.llm.quality import measure_quality
from inference.modelling.quantisation import Quant
from inference.modelling.specs.parts import Dtype
from inference.text.template_check import check_template
from inference.text.tokenisation.tokenizer import load_tokenizer
from inference.values.sampling_params import SamplingParams
from models_registry.detection.child import inspect_in_child
from models_registry.detection.inspection import Inspection

Progress = Callable[[float, str], None]
Entry = dict[str, Any]

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
FORMS: Sequence[Quant] = ("int8", "int4")
TEXTS = (
    "The quick brown fox jumps over the lazy dog.",
    "def area(radius):\n    return 3.14159 * radius ** 2  # a circle\n",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich; ça coûte 12,50 €.",
    "星を見る人は、夜を待つ。 Звёзды видны ночью. 🌌👩‍🚀",
    '{"values": [1, -2.5, 1e-9], "nested": {"a": null}}',
)
"""Prompts whose logits are compared, and texts that go through the tokenizer and back."""
MAX_TEXT_TOKENS = 64
MAX_KL: Mapping[Dtype, float] = {"float32": 1e-3, "bfloat16": 5e-2, "float16": 5e-2}
"""Highest mean KL divergence in nats from transformers' logits: above rounding, far below another arithmetic's."""
QUALITY_TOKENS, QUALITY_WINDOW = 512, 256
PREFILL_TOKENS, DECODE_TOKENS = 256, 32
COPIES = 2.2
"""Copies of the weights in memory at a time: two networks, and a part of a file."""


def make(
    *, path: str, overrides: Mapping[str, Any], device: str, served: Mapping[str, Any], progress: Progress
) -> dict[str, Any]:
    """Check and measure a checkpoint; returns ``entries``, each with ``name``, ``state``, ``words`` and ``figures``.

    Args:
        path: The checkpoint.
        overrides: Facts that count instead of detected ones.
        device: As BLAZR_DEVICE has it.
        served: ``dtype`` and ``quant`` that it is served with, of which the speeds are.
        progress: Called with the share done and a description of the present work.

    Raises:
        BlazrError: The checkpoint can't be read, or memory is too small.
    """
    progress(0.0, "inspecting")
    inspection = inspect_in_child(Path(path), overrides)
    spec = inspection.spec

    def needed(dtype: torch.dtype) -> int:
        return int(COPIES * spec.num_parameters() * dtype.itemsize)

    where, dtype = device_and_dtype(device, needed, "unload models, or use a larger machine")
    options = LLMOptions(device=where, dtype=dtype)
    texts = prompts_of(inspection)
    steps: tuple[tuple[str, Callable[[], list[Entry]]], ...] = (
        ("tokenizer", lambda: [check_tokenizer(inspection)]),
        ("chat template", lambda: [check_chat_template(inspection)]),
        ("logits", lambda: [check_logits(inspection, texts, options)]),
        ("speed", lambda: [measure_speed(inspection, replace(options, **served))]),
        ("forms", lambda: measure_forms(inspection, options)),
    )
    entries: list[Entry] = []
    for number, (name, work) in enumerate(steps):
        progress(number / len(steps), f"checking: {name}")
        try:
            entries += work()
        except BlazrError as error:
            entries.append(entry(name, FAILED, error.message))
    progress(1.0, "done")
    return {"entries": entries}


def entry(name: str, state: str, words: str, **figures: Any) -> Entry:
    """An entry; figures that are no finite numbers are left out, as JSON has none."""
    kept = {key: value for key, value in figures.items() if not isinstance(value, float) or math.isfinite(value)}
    return {"name": name, "state": state, "words": words, "figures": kept}


def prompts_of(inspection: Inspection) -> list[list[int]]:
    """Return token ids to compare logits for: of ``TEXTS``, or random ones where no tokenizer is known."""
    most = min(MAX_TEXT_TOKENS, inspection.spec.max_position_embeddings)
    if inspection.tokenizer.kind == "none":
        return [tokens_to_read(inspection, None, most)[0]]
    tokenizer = load_tokenizer(inspection.tokenizer)
    found = []
    try:
        for text in TEXTS:
            try:
                found.append(tokenizer.encode(text)[:most])
            except BlazrError:  # the vocabulary can't say it; the tokenizer's entry reports that
                continue
    finally:
        tokenizer.close()
    return [ids for ids in found if ids] or [tokens_to_read(inspection, None, most)[0]]


def check_tokenizer(inspection: Inspection) -> Entry:
    """Take texts through the tokenizer and back, and compare the ids with transformers' where it reads the files."""
    name = "tokenizer"
    if inspection.tokenizer.kind == "none":
        return entry(name, SKIPPED, "no tokenizer is known; the model takes token ids only.")
    tokenizer = load_tokenizer(inspection.tokenizer)
    try:
        ids, changed = [], []
        for text in TEXTS:
            own = tokenizer.encode(text, add_special_tokens=False)
            ids.append(own)
            back = tokenizer.decode(own)
            if back != text:
                changed.append(f"{text[:24]!r} became {back[:24]!r}")
    finally:
        tokenizer.close()
    if changed:
        return entry(name, FAILED, f"{len(changed)} of {len(TEXTS)} texts came back changed: {changed[0]}.")
    words = f"{len(TEXTS)} texts in several scripts came back unchanged"
    if reason_against(inspection) or not (inspection.directory / "tokenizer.json").is_file():
        return entry(name, PASSED, f"{words}.")
    try:
        theirs = reference_ids(inspection.directory, TEXTS)
    except Exception as error:  # a library that reads files from outside
        return entry(name, PASSED, f"{words}; transformers can't read the tokenizer ({_first_line(error)}).")
    if theirs != ids:
        which = next(text for text, mine, other in zip(TEXTS, ids, theirs, strict=True) if mine != other)
        return entry(name, FAILED, f"{words}, but transformers has other token ids for {which[:24]!r}.")
    return entry(name, PASSED, f"{words}, with the token ids of transformers.")


def check_chat_template(inspection: Inspection) -> Entry:
    """Render a sample conversation."""
    name, source = "chat template", inspection.tokenizer.chat_template
    if not source:
        return entry(name, SKIPPED, "the model has no chat template.")
    found = check_template(source, dict(inspection.tokenizer.special_tokens))
    if found.errors:
        return entry(name, FAILED, f"{found.errors[0]}.")
    warnings = f"; {'; '.join(map(str, found.warnings))}" if found.warnings else ""
    return entry(name, PASSED, f"a conversation with a system message and tools renders{warnings}.")


def check_logits(inspection: Inspection, texts: Sequence[Sequence[int]], options: LLMOptions) -> Entry:
    """Compare the logits of a few prompts with those of transformers."""
    name, reason = "logits", reason_against(inspection)
    if reason:
        return entry(name, SKIPPED, f"not compared: {reason}")
    dtype: Any = options.dtype
    own = text_logits(inspection.spec, inspection.weight_paths, texts, options=options)
    try:
        theirs = reference_logits(inspection.directory, texts, TORCH_DTYPES[dtype])
    except Exception as error:  # a library that reads files from outside
        sys.stderr.write(f"transformers: {error}\n")
        return entry(name, SKIPPED, f"not compared: transformers can't load it ({_first_line(error)}).")
    found = compare_logits(own, theirs)
    is_close = found.mean_kl <= MAX_KL[dtype]  # NaN isn't
    words = (
        f"{found.num_tokens} positions of {len(texts)} prompts in {dtype}: KL {found.mean_kl:.1e} nats from "
        f"transformers, the same first choice at {found.top1_agreement:.1%}"
    )
    limit = "" if is_close else f"; at most {MAX_KL[dtype]:g} is rounding"
    return entry(name, PASSED if is_close else FAILED, f"{words}{limit}.", **asdict(found))


def measure_speed(inspection: Inspection, options: LLMOptions) -> Entry:
    """Measure prefill and decode of one sequence, in the form that is served."""
    spec = inspection.spec
    length = min(PREFILL_TOKENS + DECODE_TOKENS, spec.max_position_embeddings)
    num_prompt = max(length - DECODE_TOKENS, 1)
    token_ids, _ = _some_text(inspection, num_prompt)
    own = replace(options, max_num_seqs=1, prefix_cache=False, max_model_len=length)
    began = time.perf_counter()
    llm = LLM.load(spec, inspection.tokenizer, inspection.weight_paths, own)
    load_s = time.perf_counter() - began
    try:
        params = SamplingParams(max_tokens=length - num_prompt, temperature=0.0, ignore_eos=True)
        for _ in range(2):  # the first one warms up
            usage: Any = next(event for event in llm.events(token_ids, params) if event["type"] in ("done", "error"))
    finally:
        llm.close()
    if usage["type"] == "error":
        return entry("speed", FAILED, BlazrError.from_dict(usage["error"]).message)
    figures = usage["usage"]
    prefill = num_prompt / max(figures["ttft_s"], 1e-9)
    seconds = figures["duration_s"] - figures["ttft_s"]
    decode = (figures["completion_tokens"] - 1) / seconds if seconds > 0 else 0.0
    words = (
        f"{prefill:.0f} tokens/s prefill over {num_prompt} tokens, {decode:.1f} tokens/s decode of one sequence, on "
        f"{options.device} with quant {options.quant}, at low priority beside what else ran; loaded in {load_s:.1f} s."
    )
    return entry("speed", PASSED, words, prefill_tokens_per_s=prefill, decode_tokens_per_s=decode, load_s=load_s)


def measure_forms(inspection: Inspection, options: LLMOptions) -> list[Entry]:
    """Measure what int8 and int4 cost against the unquantised network."""
    token_ids, text = _some_text(inspection, QUALITY_TOKENS)
    found = measure_quality(
        inspection.spec,
        inspection.weight_paths,
        token_ids,
        FORMS,
        options=options,
        window=min(QUALITY_WINDOW, inspection.spec.max_position_embeddings),
    )
    return [
        entry(
            form.quant,
            PASSED if math.isfinite(form.mean_kl) else FAILED,
            f"KL {form.mean_kl:.1e} nats from the unquantised model, the same first choice at "
            f"{form.top1_agreement:.1%}, perplexity {form.perplexity / found[0].perplexity - 1:+.1%}, over "
            f"{form.num_tokens} predictions of {text}.",
            mean_kl=form.mean_kl,
            top1_agreement=form.top1_agreement,
            perplexity=form.perplexity,
            weights_bytes=form.weights_bytes,
        )
        for form in found[1:]
    ]


def _some_text(inspection: Inspection, most: int) -> tuple[list[int], str]:
    """Return token ids of the help pages, or random ones where no tokenizer is known, and what they are."""
    return tokens_to_read(inspection, help_pages() if inspection.tokenizer.kind != "none" else None, most)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:160]


if __name__ == "__main__":
    run(make)
