"""Parts of a load: text side in a thread, cache files, the engine's sizes, and checks of device and dtype."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from inference.engine.config import EngineConfig, StatePlan
from inference.engine.model_runner import TORCH_DTYPES
from inference.engine.prefix_cache.disk import DiskTier
from inference.engine.prefix_cache.model_key import model_key
from inference.errors import BlazrError, ModelLoadFailed
from inference.host.machine import cpu_multiplies_bfloat16, keep_freed_memory
from inference.llm.options import LLMOptions
from inference.modelling.quantisation import REVISION
from inference.modelling.spec import ModelSpec
from inference.modelling.specs.parts import DTYPE_BYTES, Dtype, StateDtype
from inference.modelling.vision.encoder import ImageEncoder
from inference.modelling.weights.loader import load_vision
from inference.text.tokenisation.chat_template import ChatTemplate
from inference.text.tokenisation.tokenizer import Tokenizer, load_tokenizer
from inference.values.tokenizer_spec import TokenizerSpec

logger = logging.getLogger(__name__)

SMALL_WEIGHTS_BYTES = 100 << 20


class TextLoading:
    """Load tokenizer and chat template of a checkpoint in a thread, which starts at once.

    Args:
        spec: What inspection found.
        max_model_len: Most tokens of prompt and output.
    """

    def __init__(self, spec: TokenizerSpec, max_model_len: int) -> None:
        self._spec = spec
        self._max_model_len = max_model_len
        self._tokenizer: Tokenizer | None = None
        self._template: ChatTemplate | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="load-text")
        self._loading = self._thread.submit(self._load)

    def check(self) -> None:
        """Raise what went wrong, if it has by now."""
        if self._loading.done():
            self._loading.result()

    def checking(self, progress: Callable[[float, str], None] | None) -> Callable[[float, str], None]:
        """Return a callback for a load's progress that raises what went wrong here, too."""

        def report(share: float, name: str) -> None:
            self.check()
            if progress is not None:
                progress(share, name)

        return report

    def result(self) -> tuple[Tokenizer, ChatTemplate | None]:
        """Wait for both.

        Raises:
            CheckpointError: A file can't be used.
        """
        self._loading.result()
        self._thread.shutdown()
        assert self._tokenizer is not None
        return self._tokenizer, self._template

    def close(self) -> None:
        """Wait for the thread, and end the child processes of both."""
        self._thread.shutdown()
        if self._tokenizer is not None:
            self._tokenizer.close()
        if self._template is not None:
            self._template.close()

    def _load(self) -> None:
        self._tokenizer = load_tokenizer(self._spec)
        self._template = load_template(self._spec, self._tokenizer, self._max_model_len)


def load_template(spec: TokenizerSpec, tokenizer: Tokenizer, max_model_len: int) -> ChatTemplate | None:
    """The checkpoint's chat template with its child already started; None if there is none.

    A broken template is logged here and reported by every chat request; the model serves text all the same.
    """
    if spec.chat_template is None or not tokenizer.has_text:
        return None
    template = ChatTemplate(
        spec.chat_template,
        special_tokens=dict(spec.special_tokens),
        control_tokens=tokenizer.special_tokens,
        max_model_len=max_model_len,
    )
    try:
        template.warm_up()
    except BlazrError as error:
        logger.warning("%s", error.message)
    return template


def engine_config(
    spec: ModelSpec, plan: StatePlan, options: LLMOptions, dtype: Dtype, invalid_token_ids: Sequence[int]
) -> EngineConfig:
    """The engine's sizes for states that are divided as planned.

    Args:
        spec: Of the network.
        plan: Of the states' memory.
        options: How the checkpoint is run.
        dtype: Of the states that follow the model.
        invalid_token_ids: Ids below vocab_size that no token of the vocabulary has.
    """
    return EngineConfig(
        max_model_len=plan.max_model_len,
        num_blocks=plan.num_blocks,
        num_state_slots=plan.num_state_slots,
        block_size=plan.block_size,
        max_num_seqs=options.max_num_seqs,
        max_num_batched_tokens=options.step_tokens(spec.num_active_parameters()),
        device=options.device,
        dtype=dtype,
        state_dtype=choose_state_dtype(spec, options),
        invalid_token_ids=tuple(invalid_token_ids),
        prefix_cache=options.prefix_cache,
        num_snapshot_slots=plan.num_snapshot_slots,
        num_spare_slots=plan.num_spare_slots,
        max_adapters=options.max_adapters,
        adapter_bytes=options.adapter_bytes,
        snapshot_host_bytes=options.snapshot_host_bytes,
    )


def open_disk(
    spec: ModelSpec, weight_files: Sequence[Path], dtype: Dtype, options: LLMOptions, *, merge: str = ""
) -> DiskTier | None:
    """The prefix cache's files of a checkpoint that is run so; None without a directory for them.

    Args:
        merge: Digest of what is merged into the weights.

    Raises:
        InvalidRequest: The directory can't be used.
    """
    if options.cache_dir is None or not options.prefix_cache or not options.cache_dir_bytes:
        return None
    numbers = f"{dtype} {options.quant} {REVISION} {options.device_kind} {options.block_size}{merge and f' {merge}'}"
    if choose_state_dtype(spec, options) != "float32":
        numbers += f" states {options.state_dtype}"
    key = model_key(spec, weight_files, numbers, memo_dir=options.cache_dir / "digests")
    return DiskTier(options.cache_dir, key, options.cache_dir_bytes)


def load_vision_part(
    spec: ModelSpec, weight_files: Sequence[Path], dtype: Dtype, options: LLMOptions
) -> ImageEncoder | None:
    """The part of a model that reads pictures; None: it has none.

    Raises:
        CheckpointError: A file is broken.
    """
    if spec.vision is None:
        return None
    return load_vision(
        spec.vision, weight_files, dtype=TORCH_DTYPES[dtype], device=options.device, encoded=spec.encoded
    )


def prepare_process(spec: ModelSpec, options: LLMOptions) -> Dtype:
    """Set this process up for the load.

    Returns:
        The dtype to compute in.

    Raises:
        ModelLoadFailed: The device isn't there, or can't compute in that dtype.
    """
    check_device(options)
    if options.device_kind == "cpu":
        keep_freed_memory()
    if options.num_threads is not None:
        torch.set_num_threads(options.num_threads)
    dtype = choose_dtype(spec, options)
    check_dtype(options, dtype)
    return dtype


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


def choose_state_dtype(spec: ModelSpec, options: LLMOptions) -> StateDtype:
    """The dtype in which recurrent states are stored; float32 for ``auto`` and for a model that has none."""
    return options.state_dtype if options.state_dtype != "auto" and spec.has_recurrent_states() else "float32"


def choose_device(*, force_cpu: bool) -> str:
    """Return ``cuda:0`` if there is one, unless ``force_cpu``."""
    if force_cpu:
        return "cpu"
    return "cuda:0" if torch.cuda.is_available() else "cpu"


def check_device(options: LLMOptions) -> None:
    """Refuse a device that isn't there.

    Raises:
        ModelLoadFailed: It isn't.
    """
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


def check_dtype(options: LLMOptions, dtype: Dtype) -> None:
    """Refuse bfloat16 where the device can't multiply it.

    Raises:
        ModelLoadFailed: It can't.
    """
    if options.device_kind != "cuda" or dtype != "bfloat16":
        return
    major, minor = torch.cuda.get_device_capability(torch.device(options.device))
    if major < 8:
        raise ModelLoadFailed(
            f"{options.device} has compute capability {major}.{minor}, bfloat16 needs 8.0; set the dtype to float16.",
            param="dtype",
        )
