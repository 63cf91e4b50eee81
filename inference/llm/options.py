"""LLMOptions: how a checkpoint is loaded and run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from inference.engine.pooling import POOLINGS, Pooling
from inference.errors import InvalidRequest
from inference.modelling.quantisation import QUANTS, Quant
from inference.modelling.specs.parts import DTYPE_BYTES, STATE_DTYPES
from inference.text.grammars.checker import GrammarLimits
from inference.values.speculative_options import SpeculativeOptions

MAX_STEP_TOKENS = 512
"""Most tokens in one step, if none are given."""
MIN_CPU_STEP_TOKENS = 128
CPU_STEP_WORK = 1.4e11
"""On a CPU a step has fewer tokens, a power of two from ``MIN_CPU_STEP_TOKENS`` on, if tokens times the weights that
each is multiplied by would be more: a step delays the next token of every other request, and 512 tokens of a model of
1B take three seconds on two processors. Steps of 128 are as fast there as longer ones; small models lose up to a tenth
of their rate with 256 (``python -m bench.step_tokens``)."""


_LEAST_ONE = (
    "max_model_len", "max_num_seqs", "max_num_batched_tokens", "cache_bytes", "memory_bytes", "block_size",
    "num_threads", "adapter_bytes",
)  # fmt: skip
_LEAST_ZERO = ("snapshot_bytes", "snapshot_host_bytes", "cache_dir_bytes", "max_adapters")


@dataclass(frozen=True, slots=True)
class LLMOptions:
    """How to run a checkpoint.

    Attributes:
        device: ``cpu``, ``cuda`` or ``cuda:N``.
        dtype: Of weights and activations; ``auto``: see ``choose_dtype``.
        state_dtype: Of recurrent states in memory and in files; ``auto`` is float32. They are computed in float32.
        max_model_len: Most tokens of prompt and output; None: the model's own, or as many as the states'
            memory holds, if that is less.
        max_num_seqs: Most sequences that are computed together.
        max_num_batched_tokens: Most tokens in one step, raised to ``max_num_seqs`` if lower; None: see ``step_tokens``.
        cache_bytes: Memory for states; None: what ``max_num_seqs`` full sequences need, within ``CACHE_SHARE``.
        memory_bytes: On CUDA, memory for weights and states; None: ``CUDA_SHARE`` of what is free now. What is free
            while other models are loaded says nothing about what is there once they have left.
        block_size: Tokens in one block of paged state.
        prefix_cache: Keep states for prompts that begin alike.
        snapshot_bytes: Of ``cache_bytes``, what snapshots of recurrent state may take; None: see ``SNAPSHOT_BYTES``.
        snapshot_host_bytes: Host memory for snapshots that had to leave a device.
        cache_dir: Directory in which the prefix cache outlives the process, also as a text; None: it doesn't.
        cache_dir_bytes: Most bytes there, all models together.
        quant: What the matrices become as they are loaded: ``auto``, ``none``, ``int8`` or ``int4``.
        speculative: How tokens are drafted; None: not at all.
        pooling: How vectors are pooled unless the request says.
        max_adapters: Most LoRA adapters that are resident at once; 0: requests can't name any.
        adapter_bytes: Memory for resident adapters; None: what ``max_adapters`` of them need, for which nothing is
            kept free.
        num_threads: Threads of one operator on a CPU, for the whole process; None: torch's choice.
    """

    device: str = "cpu"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    state_dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    max_model_len: int | None = None
    max_num_seqs: int = 64
    max_num_batched_tokens: int | None = None
    cache_bytes: int | None = None
    memory_bytes: int | None = None
    block_size: int = 16
    prefix_cache: bool = True
    snapshot_bytes: int | None = None
    snapshot_host_bytes: int = 0
    cache_dir: Path | None = None
    cache_dir_bytes: int = 16 << 30
    quant: Quant = "auto"
    speculative: SpeculativeOptions | None = None
    pooling: Pooling = "mean"
    max_adapters: int = 8
    adapter_bytes: int | None = None
    num_threads: int | None = None
    grammar_limits: GrammarLimits = GrammarLimits()  # noqa: RUF009 frozen

    def __post_init__(self) -> None:
        kind, _, number = self.device.partition(":")
        if kind not in ("cpu", "cuda") or (number and not number.isdigit()) or (kind == "cpu" and number):
            raise InvalidRequest(f"device is {self.device!r}; it must be cpu, cuda or cuda:N.", param="device")
        if self.dtype != "auto" and self.dtype not in DTYPE_BYTES:
            raise InvalidRequest(f"dtype is {self.dtype!r}; it must be auto, {', '.join(DTYPE_BYTES)}.", param="dtype")
        if self.state_dtype != "auto" and self.state_dtype not in STATE_DTYPES:
            raise InvalidRequest(
                f"state_dtype is {self.state_dtype!r}; it must be auto, {', '.join(STATE_DTYPES)}.", param="state_dtype"
            )
        if self.quant not in QUANTS:
            raise InvalidRequest(f"quant is {self.quant!r}; it must be {', '.join(QUANTS)}.", param="quant")
        if self.pooling not in POOLINGS:
            raise InvalidRequest(f"pooling is {self.pooling!r}; it must be {', '.join(POOLINGS)}.", param="pooling")
        if self.cache_dir is not None:
            object.__setattr__(self, "cache_dir", Path(self.cache_dir))
        for least, names in ((1, _LEAST_ONE), (0, _LEAST_ZERO)):
            for name in names:
                value = getattr(self, name)
                if value is not None and (not isinstance(value, int) or value < least):
                    problem = f"at least {least}" if isinstance(value, int) else "an integer"
                    raise InvalidRequest(f"{name} is {value!r}, it must be {problem}.", param=name)

    @property
    def device_kind(self) -> str:
        """``cpu`` or ``cuda``."""
        return self.device.partition(":")[0]

    def step_tokens(self, num_active: int) -> int:
        """Most tokens in one step, at least ``max_num_seqs``.

        Args:
            num_active: Weights that each token is multiplied by.
        """
        tokens = self.max_num_batched_tokens
        if tokens is None:
            tokens = MAX_STEP_TOKENS
            while self.device_kind == "cpu" and tokens > MIN_CPU_STEP_TOKENS and tokens * num_active > CPU_STEP_WORK:
                tokens //= 2
        return max(tokens, self.max_num_seqs)
