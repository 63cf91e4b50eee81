"""Measure a checkpoint of a training run, as the child process of a job (``job_child``): loss and samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from blazr_site.commands.arguments import QUANTISE_WINDOW
from blazr_site.commands.quality import tokens_to_read
from blazr_site.job_child import DTYPES, device_and_dtype, run
from inference.engine.model_runner import TORCH_DTYPES
from inference.errors import BlazrError, GenerationFailed, InvalidRequest
from inference.llm.llm import LLM
from inference.llm.options import LLMOptions
from inference.llm.sizes import needed_bytes
from inference.llm.text_loss import mean_loss
from inference.values.sampling_params import SamplingParams
from models_registry.detection.child import inspect_in_child
from models_registry.detection.inspection import Inspection

Progress = Callable[[float, str], None]

_LOADED, _LOSS = 0.3, 0.7
"""Shares of the work that are done after the load, and after the loss."""
NO_TEXT = "no tokenizer is known for it, so there is neither text to read nor to write; set one on its page."


def measure(
    *,
    path: str,
    overrides: Mapping[str, Any],
    prompts: Sequence[str],
    max_tokens: int,
    temperature: float,
    seed: int,
    text: str,
    loss_tokens: int,
    device: str,
    progress: Progress,
) -> dict[str, Any]:
    """Load a checkpoint as a worker does, without the prefix cache, and measure it.

    Args:
        path: The checkpoint.
        overrides: Facts that count instead of detected ones.
        prompts, max_tokens, temperature, seed: Of the samples.
        text: Held-out text, of which the loss is measured.
        loss_tokens: Tokens of the text that are read.
        device: As BLAZR_DEVICE has it.
        progress: Called with the share done and a description of the present work.

    Returns:
        ``loss`` in nats per token (null: it is no finite number), ``num_tokens`` that it is a mean of, ``samples``, and
        ``problem``, what the figures don't show.

    Raises:
        BlazrError: The checkpoint can't be loaded, or has no tokenizer.
    """
    progress(0.0, "inspecting")
    inspection = inspect_in_child(Path(path), overrides)
    if inspection.tokenizer.kind == "none":
        raise InvalidRequest(NO_TEXT, param="checkpoint")
    token_ids, _ = tokens_to_read(inspection, (text, "the held-out text"), loss_tokens)
    llm = _load(inspection, device, lambda share, name: progress(_LOADED * share, "loading weights"))
    try:
        loss, count, problem = _loss(
            llm,
            token_ids,
            lambda share: progress(_LOADED + (_LOSS - _LOADED) * share, "reading the held-out text"),
        )
        params = SamplingParams(max_tokens=max_tokens, temperature=temperature, seed=seed)
        samples = []
        for number, prompt in enumerate(prompts):
            progress(_LOSS + (1.0 - _LOSS) * number / len(prompts), f"sample {number + 1} of {len(prompts)}")
            samples.append(sample(llm, prompt, params))
    finally:
        llm.close()
    progress(1.0, "done")
    return {"loss": loss, "num_tokens": count, "samples": samples, "problem": problem}


def _loss(llm: LLM, token_ids: Sequence[int], progress: Callable[[float], None]) -> tuple[float | None, int, str]:
    """Return the loss, the number of predictions, and why there is no loss."""
    try:
        loss, count = mean_loss(llm, token_ids, window=min(QUANTISE_WINDOW, llm.max_model_len), progress=progress)
    except GenerationFailed as error:
        return None, 0, f"the training has diverged: {error.message}"
    if not math.isfinite(loss):
        return None, count, "the training has diverged: the loss is no finite number."
    return loss, count, ""


def sample(llm: LLM, prompt: str, params: SamplingParams) -> dict[str, Any]:
    """Continue a prompt; what can't be continued has an ``error`` in place of a text."""
    text, reason, num_tokens = "", "", 0
    try:
        capacity = llm.max_model_len - len(llm.tokenizer.encode(prompt)) - 1
        limit = min(params.max_tokens or 1, max(capacity, 1))
        for event in llm.events(prompt, replace(params, max_tokens=limit)):
            if event["type"] == "error":
                raise BlazrError.from_dict(event["error"])
            if event["type"] == "delta":
                text += event.get("text", "")
                num_tokens += len(event.get("token_ids", ()))
                reason = event.get("finish_reason") or reason
    except BlazrError as error:
        return {"prompt": prompt, "text": "", "num_tokens": 0, "finish_reason": "", "error": error.message}
    stored = text.replace("\0", "\ufffd")  # PostgreSQL stores no null character
    return {"prompt": prompt, "text": stored, "num_tokens": num_tokens, "finish_reason": reason, "error": ""}


def _load(inspection: Inspection, device: str, progress: Progress) -> LLM:
    spec = inspection.spec
    options = LLMOptions(max_num_seqs=1, prefix_cache=False, max_model_len=min(4096, spec.max_position_embeddings))

    def needed(dtype: torch.dtype) -> int:
        name = next(name for name in DTYPES if TORCH_DTYPES[name] == dtype)
        return needed_bytes(spec, replace(options, dtype=name))

    where, dtype = device_and_dtype(device, needed, "unload models, or run blazr watch on a larger machine")
    return LLM.load(
        spec,
        inspection.tokenizer,
        inspection.weight_paths,
        replace(options, device=where, dtype=dtype),
        progress=progress,
    )


if __name__ == "__main__":
    run(measure)
