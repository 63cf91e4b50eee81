"""LLM: text in, events out. Puts tokeniser, network and engine of one checkpoint together; no Django.

``prepare`` may be called from any thread. ``add``, ``abort``, ``step`` and ``has_unfinished`` belong to the one
thread that owns the engine (``inference.engine.loop`` drives them). ``generate`` is for shells and tests.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

import torch

from inference.compute_threads import release_compute_threads
from inference.draft_loading import DraftCheckpoint, load_draft, plan_draft
from inference.engine.config import SNAPSHOT_SHARE, EngineConfig, StatePlan, plan_state_budget
from inference.engine.device import on_device, return_device_memory
from inference.engine.engine import Engine
from inference.engine.pooling import POOLINGS, Pooling
from inference.engine.prefix_cache.disk import DiskTier
from inference.engine.prefix_cache.model_key import model_key
from inference.engine.request import EngineOutput
from inference.engine.speculation.setup import Speculation
from inference.errors import Conflict, GenerationFailed, InvalidRequest, ModelLoadFailed
from inference.host_memory import keep_freed_memory, return_freed_memory
from inference.messages import GenerateMessage, GenerationEvent, PromptMessage
from inference.modelling.layers.linear import network_bytes, pack_weights
from inference.modelling.spec import DTYPE_BYTES, Dtype, ModelSpec
from inference.modelling.weights.loader import load_network
from inference.modelling.weights.quantisation import QUANTS, Quant, weights_bytes
from inference.pooled_output import PooledOutput
from inference.sampling_params import SamplingParams
from inference.speculative_options import SpeculativeOptions
from inference.structured.checker import GrammarLimits
from inference.structured.compiler import GrammarCompiler
from inference.text_loading import TextLoading
from inference.text_output import TextOutput
from inference.text_request import PreparedRequest, RequestPreparer
from inference.tokenisation.chat_template import ChatTemplate
from inference.tokenisation.spec import TokenizerSpec
from inference.tokenisation.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

SMALL_WEIGHTS_BYTES = 100 << 20
CACHE_SHARE = {"cpu": 0.25, "cuda": 0.95}
"""States get at most this share of the memory that is free once the weights are there, if nothing else is said."""
CUDA_SHARE = 0.9
"""Of a CUDA device's free memory, what models get; the rest is for a step's results, captured decodes, libraries."""
SNAPSHOT_BYTES = 1 << 30
"""Snapshots of recurrent state get at most this much, and ``MAX_SNAPSHOTS``, if nothing else is said."""
MAX_SNAPSHOTS = 256
_TORCH_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True)
class LLMOptions:
    """How to run a checkpoint.

    Attributes:
        device: ``cpu``, ``cuda`` or ``cuda:N``.
        dtype: Of weights and activations; ``auto``: see ``choose_dtype``.
        max_model_len: Most tokens of prompt and output; None: the model's own, or as many as the states'
            memory holds, if that is less.
        max_num_seqs: Most sequences that are computed together.
        max_num_batched_tokens: Most tokens in one step.
        cache_bytes: Memory for states; None: what ``max_num_seqs`` full sequences need, within ``CACHE_SHARE``.
        memory_bytes: On CUDA, memory for weights and states; None: ``CUDA_SHARE`` of what is free now. What is free
            while other models are loaded says nothing about what is there once they have left.
        block_size: Tokens in one block of paged state.
        prefix_cache: Keep states for prompts that begin alike.
        snapshot_bytes: Of ``cache_bytes``, what snapshots of recurrent state may take; None: see ``SNAPSHOT_BYTES``.
        snapshot_host_bytes: Host memory for snapshots that had to leave a device.
        cache_dir: Directory in which the prefix cache outlives the process; None: it doesn't.
        cache_dir_bytes: Most bytes there, all models together.
        quant: What the matrices become as they are loaded: ``none``, ``int8`` or ``int4``.
        speculative: Whether and how to guess ahead.
        pooling: How vectors are pooled unless the request says.
        num_threads: Threads of one operator on a CPU, for the whole process; None: torch's choice.
        grammar_limits: What the grammars of requests may take.
    """

    device: str = "cpu"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    max_model_len: int | None = None
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    cache_bytes: int | None = None
    memory_bytes: int | None = None
    block_size: int = 16
    prefix_cache: bool = True
    snapshot_bytes: int | None = None
    snapshot_host_bytes: int = 0
    cache_dir: Path | None = None
    cache_dir_bytes: int = 16 << 30
    quant: Quant = "none"
    speculative: SpeculativeOptions | None = None
    pooling: Pooling = "mean"
    num_threads: int | None = None
    grammar_limits: GrammarLimits = GrammarLimits()  # noqa: RUF009 frozen

    def __post_init__(self) -> None:
        kind, _, number = self.device.partition(":")
        if kind not in ("cpu", "cuda") or (number and not number.isdigit()) or (kind == "cpu" and number):
            raise InvalidRequest(f"device is {self.device!r}; it must be cpu, cuda or cuda:N.", param="device")
        if self.dtype != "auto" and self.dtype not in DTYPE_BYTES:
            raise InvalidRequest(f"dtype is {self.dtype!r}; it must be auto, {', '.join(DTYPE_BYTES)}.", param="dtype")
        if self.quant not in QUANTS:
            raise InvalidRequest(f"quant is {self.quant!r}; it must be {', '.join(QUANTS)}.", param="quant")
        if self.pooling not in POOLINGS:
            raise InvalidRequest(f"pooling is {self.pooling!r}; it must be {', '.join(POOLINGS)}.", param="pooling")
        for name in ("max_model_len", "cache_bytes", "memory_bytes", "num_threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidRequest(f"{name} is {value}, it must be at least 1.", param=name)
        for name in ("snapshot_bytes", "snapshot_host_bytes", "cache_dir_bytes"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise InvalidRequest(f"{name} is {value}, it must be at least 0.", param=name)

    @property
    def device_kind(self) -> str:
        """``cpu`` or ``cuda``."""
        return self.device.partition(":")[0]


class LLM:
    """One loaded checkpoint. Make it with ``load``.

    Args:
        engine: Its states are allocated, its network is on the device.
        tokenizer: The checkpoint's.
        template: Its chat template, None if it has none.
        weights_bytes: Memory of the network, and of the draft model's.
        plan: How the states' memory is divided.
        draft_state_bytes: Memory of the draft model's states.
        pooling: How vectors are pooled unless the request says.
        grammar_limits: What the grammars of requests may take; None: the usual.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        template: ChatTemplate | None,
        *,
        weights_bytes: int,
        plan: StatePlan,
        draft_state_bytes: int = 0,
        pooling: Pooling = "mean",
        grammar_limits: GrammarLimits | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.plan = plan
        self._draft_state_bytes = draft_state_bytes
        self._engine: Engine | None = engine
        self._template = template
        self._weights_bytes = weights_bytes
        self._max_model_len = plan.max_model_len
        self._outputs: dict[str, tuple[TextOutput | PooledOutput, list[str]]] = {}
        self._grammars = GrammarCompiler(tokenizer, grammar_limits)
        self._preparer = RequestPreparer(tokenizer, template, plan.max_model_len, self._grammars, pooling=pooling)
        self._choices: dict[str, tuple[str, int, TextOutput | PooledOutput]] = {}
        self._events: list[GenerationEvent] = []

    @classmethod
    def load(
        cls,
        spec: ModelSpec,
        tokenizer: TokenizerSpec,
        weight_files: Sequence[Path],
        options: LLMOptions | None = None,
        progress: Callable[[float, str], None] | None = None,
        *,
        draft: DraftCheckpoint | None = None,
    ) -> LLM:
        """Load a checkpoint.

        Args:
            spec: What inspection found.
            tokenizer: The same for its tokenizer.
            weight_files: Its safetensors files.
            options: How to run it.
            progress: Gets the share done (0 to 1) and what is being read.
            draft: The draft model, if ``options.speculative`` names one.

        Raises:
            CheckpointError: A file is broken, or doesn't fit the spec.
            ModelLoadFailed: The device isn't there.
            OutOfCacheBlocks: The states' memory is too small for one sequence.
            InvalidRequest: The draft model has another vocabulary, or isn't given.
        """
        options = options or LLMOptions()
        _check_device(options)
        if options.device_kind == "cpu":
            keep_freed_memory()
        if options.num_threads is not None:
            torch.set_num_threads(options.num_threads)
        dtype = choose_dtype(spec, options)
        _check_dtype(options, dtype)
        plan = plan_states(spec, options)  # before the weights: too little memory shows at once
        with on_device(torch.device(options.device)), contextlib.ExitStack() as undo:
            text = TextLoading(tokenizer, plan.max_model_len)
            undo.callback(text.close)

            def report(share: float, name: str) -> None:
                text.check()
                if progress is not None:
                    progress(share, name)

            network = load_network(
                spec,
                weight_files,
                dtype=_TORCH_DTYPES[dtype],
                device=options.device,
                quant=options.quant,
                pack=True,
                progress=report,
            )
            loaded, template = text.result()
            config = EngineConfig(
                max_model_len=plan.max_model_len,
                num_blocks=plan.num_blocks,
                num_state_slots=plan.num_state_slots,
                block_size=plan.block_size,
                max_num_seqs=options.max_num_seqs,
                max_num_batched_tokens=max(options.max_num_batched_tokens, options.max_num_seqs),
                device=options.device,
                dtype=dtype,
                invalid_token_ids=loaded.invalid_token_ids,
                prefix_cache=options.prefix_cache,
                num_snapshot_slots=plan.num_snapshot_slots,
                num_spare_slots=plan.num_spare_slots,
                snapshot_host_bytes=options.snapshot_host_bytes,
            )
            speculation, draft_weights = None, 0
            if options.speculative is not None:
                speculation = Speculation(options.speculative)
                if draft is not None:
                    model = load_draft(
                        draft,
                        loaded,
                        options.speculative,
                        plan_draft(draft, choose_dtype(draft.spec, options), options.speculative, plan),
                        dtype=choose_dtype(draft.spec, options),
                        quant=options.quant,
                        device=options.device,
                        max_num_batched_tokens=options.max_num_batched_tokens,
                    )
                    speculation = Speculation(options.speculative, model)
                    draft_weights = network_bytes(cast("torch.nn.Module", model.network))
            disk = open_disk(spec, weight_files, dtype, options)
            if disk is not None:
                undo.callback(disk.close)
            engine = Engine(network, spec, config, disk=disk, speculation=speculation)
            guessing = engine.stats().speculation
            pack_weights(network)
            weights_bytes = network_bytes(network) + draft_weights
            release_compute_threads()  # the steps run in another thread
            return_freed_memory()
            undo.pop_all()
        return cls(
            engine,
            loaded,
            template,
            weights_bytes=weights_bytes,
            plan=plan,
            draft_state_bytes=0 if guessing is None else guessing.state_bytes,
            pooling=options.pooling,
            grammar_limits=options.grammar_limits,
        )

    # --- any thread ----------------------------------------------------------------------------

    @property
    def max_model_len(self) -> int:
        """Most tokens of prompt and output."""
        return self._max_model_len

    def prepare(self, message: GenerateMessage) -> PreparedRequest:
        """Template, tokenise, check the limits; takes processor time, so call it outside the engine's thread.

        Raises:
            InvalidRequest: The request can't be served as it is.
            Unavailable: The checkpoint's own text programs are overloaded.
        """
        return self._preparer.prepare(message)

    def stats(self) -> dict[str, Any]:
        """The engine's counters."""
        return {} if self._engine is None else asdict(self._engine.stats())

    def memory_bytes(self) -> dict[str, int]:
        """Bytes of ``weights`` and ``states``."""
        return {"weights": self._weights_bytes, "states": self.plan.total_bytes + self._draft_state_bytes}

    def snapshot_bytes(self) -> int:
        """Bytes of the states that are for snapshots of the prefix cache."""
        return self.plan.snapshot_bytes

    def total_bytes(self) -> int:
        """Bytes of weights and states together."""
        return sum(self.memory_bytes().values())

    # --- the engine's thread -------------------------------------------------------------------

    def add(self, prepared: PreparedRequest) -> None:
        """Hand a request to the engine; its events come from ``step``.

        Raises:
            BlazrError: The engine refused it; then it has no events.
        """
        request_id, output = prepared.request_id, prepared.output
        if request_id in self._outputs:
            raise Conflict(f"request {request_id} is already in flight; use another id.", param="request_id")
        engine = self._running_engine()
        added: list[str] = []
        try:
            for number, choice in enumerate(prepared.choices):
                if not output.is_stopped(number):
                    engine.add_request(choice)
                    added.append(choice.request_id)
                    self._choices[choice.request_id] = (request_id, number, output)
        except BaseException:
            self._forget(added)
            raise
        self._outputs[request_id] = (output, added)
        self._events += output.begin()
        self._forget_if_done(request_id)

    def abort(self, request_id: str) -> bool:
        """End a request early; its last events come with the next ``step``. False if it isn't here."""
        found = self._outputs.get(request_id)
        if found is None:
            return False
        self._events += found[0].abort()
        self._forget_if_done(request_id)
        return True

    def step(self) -> list[GenerationEvent]:
        """Compute once and return all events since the last call.

        Raises:
            EngineDead: Requests in flight get no event; somebody else may continue them.
        """
        engine = self._running_engine()
        outputs = engine.step() if engine.has_unfinished() else []
        events, self._events = self._events, []
        for output in outputs:
            events += self._accept(output)
        return events

    def has_unfinished(self) -> bool:
        """Whether ``step`` has something to compute or to say."""
        return bool(self._events) or self._running_engine().has_unfinished()

    def close(self) -> None:
        """Free weights and states and end child processes; no thread may be inside the engine.

        Waits until the prefix cache is on disk, where it has a directory.
        """
        if self._engine is not None:
            self._engine.close()
        self._engine = None
        self._outputs.clear()
        self._choices.clear()
        self.tokenizer.close()
        self._grammars.close()
        if self._template is not None:
            self._template.close()
        return_device_memory()

    def _accept(self, output: EngineOutput) -> list[GenerationEvent]:
        """Events of one output; what goes wrong in here ends its request only."""
        found = self._choices.get(output.request_id)
        if found is None:  # the last word of a choice that was ended here
            return []
        request_id, number, text_output = found
        try:
            events = text_output.accept(number, output)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            logger.exception("the output of request %s could not be put into words", request_id)
            failure = GenerationFailed(f"the output could not be turned into text ({type(error).__name__}).")
            events = text_output.fail(failure)
        if output.finish_reason is None and text_output.is_stopped(number):
            self._forget([output.request_id])
        if text_output.is_done:
            self._forget_if_done(request_id)
        return events

    def _forget_if_done(self, request_id: str) -> None:
        output, choices = self._outputs[request_id]
        if output.is_done:
            self._forget(choices)
            del self._outputs[request_id]

    def _forget(self, choices: Sequence[str]) -> None:
        for choice in choices:
            if self._choices.pop(choice, None) is not None:
                self._running_engine().abort_request(choice)

    def _running_engine(self) -> Engine:
        if self._engine is None:
            raise Conflict("the model has been closed.")
        return self._engine

    # --- shells and tests ----------------------------------------------------------------------

    def generate(
        self,
        prompt: str | Sequence[int] | Sequence[Mapping[str, Any]],
        params: SamplingParams | None = None,
        **message_options: Any,
    ) -> Iterator[GenerationEvent]:
        """Generate in this thread; not while a loop drives the model.

        Args:
            prompt: Text, token ids, or chat messages.
            params: Sampling parameters.
            message_options: Further members of ``GenerateMessage`` (echo, …) or of its prompt (parse_special, …).

        Yields:
            The request's events. Closing the iterator ends the request.

        Raises:
            BlazrError: The request can't be served.
        """
        message = _local_message(prompt, params or SamplingParams(), message_options)
        request_id = message["request_id"]
        self.add(self.prepare(message))
        try:
            while request_id in self._outputs or self._events:
                for event in self.step():
                    if event["request_id"] == request_id:
                        yield event
        finally:
            if self.abort(request_id):
                self._events = [event for event in self._events if event["request_id"] != request_id]


def choose_dtype(spec: ModelSpec, options: LLMOptions) -> Dtype:
    """The dtype to compute in. ``auto`` is:

    - on CUDA, as stored;
    - on a CPU, float32 for models below 100 MiB (exact, and fast enough), and for weights that are stored so;
    - bfloat16 for larger 16-bit models, if the processor multiplies it (AVX-512 BF16, AMX); otherwise float32:
      emulated bfloat16 is several times slower.
    """
    if options.dtype != "auto":
        return options.dtype
    if options.device_kind == "cuda":
        return spec.dtype
    stored_bytes = spec.num_parameters() * DTYPE_BYTES[spec.dtype]
    if stored_bytes < SMALL_WEIGHTS_BYTES or DTYPE_BYTES[spec.dtype] > 2 or not cpu_multiplies_bfloat16():
        return "float32"
    return "bfloat16"


def cpu_multiplies_bfloat16() -> bool:
    """Whether this processor has instructions for it (Linux on x86-64: the kernel's flags)."""
    try:
        flags = Path("/proc/cpuinfo").read_text().partition("flags")[2].partition("\n")[0].split()
    except OSError:
        return False
    return "avx512_bf16" in flags or "amx_bf16" in flags


def plan_states(spec: ModelSpec, options: LLMOptions) -> StatePlan:
    """How the memory of the states is going to be divided.

    Raises:
        OutOfCacheBlocks: It is too small for one sequence of the length that was asked for.
    """
    dtype = choose_dtype(spec, options)
    length = options.max_model_len or spec.max_position_embeddings
    token_bytes, sequence_bytes = spec.state_bytes_per_token(dtype), spec.state_bytes_per_sequence(dtype)
    max_snapshots, snapshot_share = _snapshots_wanted(options, sequence_bytes)
    max_spare_slots = options.speculative.max_requests if options.speculative is not None else 0
    budget = options.cache_bytes
    if budget is None:
        blocks = options.max_num_seqs * -(-length // options.block_size) + 1
        slots = options.max_num_seqs + 1 + max_snapshots + max_spare_slots
        wanted = blocks * options.block_size * token_bytes + slots * sequence_bytes
        free = max(memory_for_model(options) - weights_bytes(spec, dtype, options.quant), 0)
        budget = min(wanted, int(CACHE_SHARE[options.device_kind] * free))
    if options.max_model_len is None and token_bytes:
        # A model's own context may be far more than this memory holds; then the context is what fits.
        least_slots = 3 if max_spare_slots else 2
        blocks = (budget - least_slots * sequence_bytes) // (token_bytes * options.block_size) - 1
        length = max(min(length, blocks * options.block_size), 1)
    return plan_state_budget(
        spec,
        dtype=dtype,
        budget_bytes=budget,
        max_num_seqs=options.max_num_seqs,
        max_model_len=length,
        block_size=options.block_size,
        max_snapshots=max_snapshots,
        snapshot_share=snapshot_share,
        max_spare_slots=max_spare_slots,
    )


def _snapshots_wanted(options: LLMOptions, slot_bytes: int) -> tuple[int, float]:
    """How many snapshots, and which share of the memory beyond one sequence's they may take for that."""
    if not options.prefix_cache or not slot_bytes:
        return 0, 0.0
    if options.snapshot_bytes is not None:
        return options.snapshot_bytes // slot_bytes, 1.0
    return min(MAX_SNAPSHOTS, SNAPSHOT_BYTES // slot_bytes), SNAPSHOT_SHARE


def with_fixed_states(spec: ModelSpec, options: LLMOptions) -> LLMOptions:
    """The options with context and states' memory as they come out now.

    Free memory changes between the plan of a load and the load; with these options both agree.

    Raises:
        OutOfCacheBlocks: As ``plan_states``.
    """
    plan = plan_states(spec, options)
    return replace(
        options,
        max_model_len=plan.max_model_len,
        cache_bytes=max(plan.total_bytes, 1),
        snapshot_bytes=plan.snapshot_bytes,
    )


def needed_bytes(spec: ModelSpec, options: LLMOptions, draft: DraftCheckpoint | None = None) -> int:
    """Bytes of weights and states, the draft model's included, after a load with these options.

    Raises:
        OutOfCacheBlocks: As ``plan_states``.
    """
    weights = weights_bytes(spec, choose_dtype(spec, options), options.quant)
    plan = plan_states(spec, options)
    if draft is not None and options.speculative is not None:
        dtype = choose_dtype(draft.spec, options)
        weights += weights_bytes(draft.spec, dtype, options.quant)
        weights += plan_draft(draft, dtype, options.speculative, plan).total_bytes
    return weights + plan.total_bytes


def load_sizes(spec: ModelSpec, options: LLMOptions) -> dict[str, int]:
    """What a load with these options is made of, without a draft model: bytes, and how many sequences they hold.

    Raises:
        OutOfCacheBlocks: As ``plan_states``.
    """
    dtype, plan = choose_dtype(spec, options), plan_states(spec, options)
    blocks_each = -(-plan.max_model_len // plan.block_size)
    by_blocks = (plan.num_blocks - 1) // blocks_each if plan.block_bytes else options.max_num_seqs
    by_slots = plan.num_state_slots - 1 if plan.slot_bytes else options.max_num_seqs
    return {
        "weights_bytes": weights_bytes(spec, dtype, options.quant),
        "states_bytes": plan.total_bytes,
        "bytes_per_token": spec.state_bytes_per_token(dtype),
        "bytes_per_sequence": spec.state_bytes_per_sequence(dtype),
        "max_model_len": plan.max_model_len,
        "full_sequences": min(by_blocks, by_slots, options.max_num_seqs),
    }


def memory_for_model(options: LLMOptions) -> int:
    """Memory for weights and states, before ``CACHE_SHARE``."""
    if options.device_kind != "cuda":
        return free_memory_bytes(options)
    return options.memory_bytes or int(CUDA_SHARE * free_memory_bytes(options))


def free_memory_bytes(options: LLMOptions) -> int:
    """Memory that is free on the device now."""
    if options.device_kind == "cuda":
        free: int = torch.cuda.mem_get_info(torch.device(options.device))[0]
        return free
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def open_disk(spec: ModelSpec, weight_files: Sequence[Path], dtype: Dtype, options: LLMOptions) -> DiskTier | None:
    """The prefix cache's files of a checkpoint that is run so; None without a directory for them.

    Raises:
        InvalidRequest: The directory can't be used.
    """
    if options.cache_dir is None or not options.prefix_cache or not options.cache_dir_bytes:
        return None
    numbers = f"{dtype} {options.quant} {options.device_kind} {options.block_size}"
    key = model_key(spec, weight_files, numbers, memo_dir=options.cache_dir / "digests")
    return DiskTier(options.cache_dir, key, options.cache_dir_bytes)


def _check_device(options: LLMOptions) -> None:
    if options.device_kind != "cuda":
        return
    if not torch.cuda.is_available():
        raise ModelLoadFailed(f"device is {options.device}, but this machine has no CUDA device.", param="device")
    index = torch.device(options.device).index or 0
    if index >= torch.cuda.device_count():
        raise ModelLoadFailed(
            f"device is {options.device}, but this machine has {torch.cuda.device_count()} CUDA devices.",
            param="device",
        )


def _check_dtype(options: LLMOptions, dtype: Dtype) -> None:
    if options.device_kind != "cuda" or dtype != "bfloat16":
        return
    major, minor = torch.cuda.get_device_capability(torch.device(options.device))
    if major < 8:
        raise ModelLoadFailed(
            f"{options.device} has compute capability {major}.{minor}, bfloat16 needs 8.0; set the dtype to float16.",
            param="dtype",
        )


def _local_message(
    prompt: str | Sequence[int] | Sequence[Mapping[str, Any]], params: SamplingParams, options: Mapping[str, Any]
) -> GenerateMessage:
    content: dict[str, Any]
    if isinstance(prompt, str):
        content = {"text": prompt}
    elif prompt and isinstance(prompt[0], Mapping):
        content = {"messages": [dict(cast("Mapping[str, Any]", message)) for message in prompt]}
    else:
        content = {"token_ids": list(prompt)}
    of_prompt = PromptMessage.__annotations__
    content |= {name: value for name, value in options.items() if name in of_prompt}
    message: dict[str, Any] = {
        "request_id": uuid.uuid4().hex,
        "web_id": "",
        "attempt": 0,
        "model": "",
        "prompt": content,
        "params": params.to_dict(),
        "priority": 0,
        "deadline": time.time() + 86400,
        **{name: value for name, value in options.items() if name not in of_prompt},
    }
    unknown = message.keys() - GenerateMessage.__annotations__.keys()
    if unknown:
        raise InvalidRequest(f"{min(unknown)} is not an option of a generation.", param=min(unknown))
    return cast("GenerateMessage", message)
