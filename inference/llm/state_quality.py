"""Measure the cost of recurrent states in bfloat16: compare a network's predictions with those of float32 states.

States are rounded whenever a step stores them, so both networks read windows of tokens as a decode does: one token a
step. The states are then rounded as often as they can be; a prefill rounds them once for each of its chunks.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from inference.engine.config import EngineConfig
from inference.engine.device import on_device
from inference.engine.model_runner import TORCH_DTYPES, allocate_states
from inference.errors import InvalidRequest
from inference.llm.loading import choose_dtype
from inference.llm.options import LLMOptions
from inference.llm.quality import BLOCK_SIZE, Progress, Quality, Sums, row_slices, windows_of
from inference.modelling.backends.backend import pack_weights
from inference.modelling.forward_batch import AttentionMetadata, ForwardBatch, PrefillChunk
from inference.modelling.layers.linear import network_bytes
from inference.modelling.network import HybridForCausalLM
from inference.modelling.spec import ModelSpec
from inference.modelling.specs.parts import Dtype, StateDtype
from inference.modelling.weights.loader import load_network

MAX_WINDOWS = 8
"""Windows that are computed side by side."""


class StepRunner:
    """Computes windows side by side from empty states, one token of each in a step.

    Args:
        network: On the CPU or a CUDA device.
        max_len: Most tokens of a window.
        dtype: Of the network.
        state_dtype: In which recurrent states are stored after each token.
        device: Of the network.
    """

    def __init__(
        self, network: HybridForCausalLM, max_len: int, dtype: Dtype, state_dtype: StateDtype, device: str
    ) -> None:
        self._network = network
        self._device = torch.device(device)
        self._blocks_each = -(-max_len // BLOCK_SIZE)
        config = EngineConfig(
            max_model_len=max_len,
            num_blocks=1 + MAX_WINDOWS * self._blocks_each,
            num_state_slots=1 + MAX_WINDOWS,
            block_size=BLOCK_SIZE,
            max_num_seqs=MAX_WINDOWS,
            device=device,
            dtype=dtype,
            state_dtype=state_dtype,
        )
        self.states = allocate_states(network.spec, config)

    def hidden(self, windows: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        """(n, h) of each window.

        Args:
            windows: At most ``MAX_WINDOWS``, the longest first.
        """
        steps = []
        for position in range(len(windows[0])):
            tokens = [window[position] for window in windows if len(window) > position]
            steps.append(self._network(self._batch(tokens, position), self.states))
        return [torch.stack([step[number] for step in steps[: len(window)]]) for number, window in enumerate(windows)]

    def _batch(self, tokens: Sequence[int], position: int) -> ForwardBatch:
        """The step of the first windows' tokens at a position."""
        count, device = len(tokens), self._device
        numbers, positions = torch.arange(count, device=device), torch.full((count,), position, device=device)
        first_blocks = 1 + numbers * self._blocks_each  # the first block is scratch
        begins = () if position else tuple(PrefillChunk(row, row + 1, 0, row, row + 1) for row in range(count))
        return ForwardBatch(
            input_ids=torch.tensor(tokens, device=device),
            positions=positions,
            slot_mapping=first_blocks * BLOCK_SIZE + positions,
            state_slots=numbers + 1,
            num_decodes=count if position else 0,
            prefills=begins,
            attention=AttentionMetadata(
                blocks=torch.arange(1, 1 + count * self._blocks_each, dtype=torch.int32, device=device),
                starts=numbers * self._blocks_each,
                lengths=positions + 1,
                first_rows=torch.arange(count + 1, device=device),
                block_size=BLOCK_SIZE,
            ),
        )


def measure_state_dtype(
    spec: ModelSpec,
    weight_files: Sequence[Path],
    token_ids: Sequence[int],
    state_dtype: StateDtype,
    *,
    options: LLMOptions,
    window: int,
    progress: Progress | None = None,
) -> Quality:
    """Compare recurrent states of a dtype with float32 states, without quantisation of the weights.

    Args:
        token_ids: The text; at least two tokens.
        state_dtype: In which the states are stored.
        options: Device and dtype.
        window: Tokens that are predicted from one empty state; the last window may be shorter.
        progress: Gets the share done and what is being done.

    Raises:
        InvalidRequest: Too few tokens, or the model has no recurrent state.
        CheckpointError: The files can't be loaded.
    """
    check_has_states(spec)
    windows, report = windows_of(token_ids, window), progress or (lambda share, detail: None)
    dtype = choose_dtype(spec, options)
    sums = Sums()
    with on_device(torch.device(options.device)), torch.inference_mode():
        network = load_network(spec, weight_files, dtype=TORCH_DTYPES[dtype], device=options.device, quant="none")
        pack_weights(network)
        exact, runner = (
            StepRunner(network, window, dtype, stored, options.device) for stored in ("float32", state_dtype)
        )
        for at in range(0, len(windows), MAX_WINDOWS):
            together = windows[at : at + MAX_WINDOWS]  # only the last one may be shorter
            inputs = [part[:-1] for part in together]
            for part, expected, hidden in zip(together, exact.hidden(inputs), runner.hidden(inputs), strict=True):
                _compare(network, part, expected, hidden, sums)
            report(min(at + MAX_WINDOWS, len(windows)) / len(windows), f"{state_dtype} states")
        return sums.quality("none", network_bytes(network), state_dtype)


def check_has_states(spec: ModelSpec) -> None:
    """Refuse a model whose states have the same dtype whatever the option says.

    Raises:
        InvalidRequest: It has no recurrent state.
    """
    if not spec.has_recurrent_states():
        raise InvalidRequest(
            f"the model ({spec.model_type}) has no recurrent state, so state_dtype changes nothing; leave it out.",
            param="state_dtype",
        )


def _compare(
    network: HybridForCausalLM, tokens: Sequence[int], expected: torch.Tensor, hidden: torch.Tensor, sums: Sums
) -> None:
    targets = torch.tensor(tokens[1:], device=hidden.device)
    for part in row_slices(len(targets), network.spec.vocab_size):
        exact, found = (network.compute_logits(given[part]).log_softmax(-1) for given in (expected, hidden))
        sums.add(found, exact, targets[part])
