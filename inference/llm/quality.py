"""Measure the cost of quantisation: compare a network's predictions with its unquantised form's.

Both networks are in memory and read the same windows of tokens; no Django, no engine.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from inference.engine.config import EngineConfig
from inference.engine.device import on_device
from inference.engine.model_runner import TORCH_DTYPES, allocate_states
from inference.errors import InvalidRequest
from inference.llm.loading import choose_dtype
from inference.llm.options import LLMOptions
from inference.modelling.backends.backend import pack_weights
from inference.modelling.forward_batch import AttentionMetadata, ForwardBatch, PrefillChunk
from inference.modelling.layers.linear import network_bytes
from inference.modelling.network import HybridForCausalLM
from inference.modelling.quantisation import Quant
from inference.modelling.spec import ModelSpec
from inference.modelling.specs.parts import Dtype, StateDtype
from inference.modelling.weights.loader import load_network

BLOCK_SIZE = 16
SLICE_BYTES = 64 << 20
"""Most bytes of one network's float32 logits at once."""

Progress = Callable[[float, str], None]


@dataclass(frozen=True, slots=True)
class Quality:
    """How one form of a network predicts.

    Attributes:
        quant: The form; ``none``: as it is computed without quantisation.
        num_tokens: Predictions that were looked at.
        perplexity: exp of the mean negative log-likelihood of the text's own next token.
        top1_agreement: Share of positions at which both networks have the same argmax.
        mean_kl: Mean Kullback-Leibler divergence from the unquantised network's distribution, in nats.
        state_dtype: In which recurrent states are stored; if it isn't float32, the comparison is with float32 states.
    """

    quant: Quant
    weights_bytes: int
    num_tokens: int
    perplexity: float
    top1_agreement: float
    mean_kl: float
    state_dtype: StateDtype = "float32"


class WindowRunner:
    """Computes the hidden rows of single windows, each from an empty state.

    Attributes:
        network: The network.
        states: Its layers' states.

    Args:
        network: On the CPU or a CUDA device.
        max_len: Most tokens of a window.
    """

    def __init__(self, network: HybridForCausalLM, max_len: int, dtype: Dtype, device: str) -> None:
        self.network = network
        num_blocks = 1 + -(-max_len // BLOCK_SIZE)
        config = EngineConfig(
            max_model_len=max_len,
            num_blocks=num_blocks,
            num_state_slots=2,
            block_size=BLOCK_SIZE,
            max_num_seqs=1,
            max_num_batched_tokens=max_len,
            device=device,
            dtype=dtype,
        )
        self.states = allocate_states(network.spec, config)
        self._device = device

    def hidden(self, tokens: Sequence[int]) -> torch.Tensor:
        """(n, h) of a window."""
        hidden: torch.Tensor = self.network(self.batch(tokens), self.states)
        return hidden

    def batch(self, tokens: Sequence[int]) -> ForwardBatch:
        """A window as a step of one sequence from its beginning."""
        count = len(tokens)
        positions = torch.arange(count, device=self._device)
        return ForwardBatch(
            input_ids=torch.tensor(tokens, device=self._device),
            positions=positions,
            slot_mapping=positions + BLOCK_SIZE,  # the first block is scratch
            state_slots=torch.ones(1, dtype=torch.int64, device=self._device),
            num_decodes=0,
            prefills=(PrefillChunk(0, count, 0, 0, 1),),
            attention=AttentionMetadata(
                blocks=torch.arange(1, 2 + count // BLOCK_SIZE, dtype=torch.int32, device=self._device),
                starts=torch.zeros(1, dtype=torch.int64, device=self._device),
                lengths=torch.tensor([count], device=self._device),
                first_rows=torch.tensor([0, count], device=self._device),
                block_size=BLOCK_SIZE,
            ),
        )


def measure_quality(
    spec: ModelSpec,
    weight_files: Sequence[Path],
    token_ids: Sequence[int],
    quants: Sequence[Quant],
    *,
    options: LLMOptions,
    window: int,
    progress: Progress | None = None,
    reference: tuple[ModelSpec, Sequence[Path]] | None = None,
) -> list[Quality]:
    """Compare quantised forms with the unquantised one.

    Args:
        token_ids: The text; at least two tokens.
        quants: Forms to look at; ``none`` comes first in the result whether named or not.
        options: Device and dtype.
        window: Tokens that are predicted from one empty state; the last window may be shorter.
        progress: Gets the share done and what is being done.
        reference: Another checkpoint's spec and files, unquantised, to compare with; ``none`` of this one is compared
            too then.

    Raises:
        InvalidRequest: Too few tokens.
        CheckpointError: The files can't be loaded.
    """
    windows = windows_of(token_ids, window)
    report = progress or (lambda share, detail: None)
    others: list[Quant] = [quant for quant in dict.fromkeys(quants) if quant != "none"]
    compared: list[Quant] = others if reference is None else list(dict.fromkeys(quants))
    compared = compared or ["none"]
    total, done = len(windows) * len(compared), 0
    results: list[Quality] = []
    with on_device(torch.device(options.device)), torch.inference_mode():
        exact = load_runner(*(reference or (spec, weight_files)), "none", options, window)
        for quant in compared:
            is_exact = quant == "none" and reference is None
            runner = exact if is_exact else load_runner(spec, weight_files, quant, options, window)
            plain, found = Sums(), Sums()
            for part in windows:
                _compare(exact, runner, part, plain, found)
                done += 1
                report(done / total, quant)
            if not results:
                results.append(plain.quality("none", network_bytes(exact.network)))
            if not is_exact:
                results.append(found.quality(quant, network_bytes(runner.network)))
            # Layers with faster forms refer to themselves, so that only the collector frees them.
            del runner
            gc.collect()
    return results


def windows_of(token_ids: Sequence[int], window: int) -> list[Sequence[int]]:
    """Cut a text into windows of at least two tokens; the last one may be shorter than the others.

    Raises:
        InvalidRequest: The text has fewer than two tokens.
    """
    if len(token_ids) < 2:
        raise InvalidRequest(f"the text has {len(token_ids)} tokens; at least 2 are needed to predict one.")
    windows = [token_ids[at : at + window] for at in range(0, len(token_ids), window)]
    return [part for part in windows if len(part) > 1]


def load_runner(
    spec: ModelSpec, weight_files: Sequence[Path], quant: Quant, options: LLMOptions, window: int
) -> WindowRunner:
    """Load a network in a form, for windows of at most ``window`` tokens.

    Raises:
        CheckpointError: The files can't be loaded.
    """
    dtype = choose_dtype(spec, options)
    network = load_network(spec, weight_files, dtype=TORCH_DTYPES[dtype], device=options.device, quant=quant)
    pack_weights(network)
    return WindowRunner(network, window, dtype, options.device)


def row_slices(num_rows: int, vocab_size: int) -> Iterator[slice]:
    """Slices of rows whose float32 logits take at most ``SLICE_BYTES``."""
    size = max(1, SLICE_BYTES // (4 * vocab_size))
    return (slice(start, start + size) for start in range(0, num_rows, size))


@dataclass(slots=True)
class Sums:
    """Running sums over positions."""

    count: int = 0
    loss: float = 0.0
    agreed: int = 0
    divergence: float = 0.0

    def add(self, log_probs: torch.Tensor, reference: torch.Tensor, targets: torch.Tensor) -> None:
        """(n, V) log-probabilities, the reference's, and (n,) the text's next tokens."""
        self.count += len(targets)
        self.loss -= float(log_probs.gather(1, targets.unsqueeze(1)).double().sum())
        self.agreed += int((log_probs.argmax(1) == reference.argmax(1)).sum())
        self.divergence += float((reference.exp() * (reference - log_probs)).double().sum())

    def quality(self, quant: Quant, weights_bytes: int, state_dtype: StateDtype = "float32") -> Quality:
        """The means of a form, whose weights take so many bytes."""
        loss = self.loss / self.count
        perplexity = math.exp(loss) if loss < 700 else math.inf
        return Quality(
            quant,
            weights_bytes,
            self.count,
            perplexity,
            self.agreed / self.count,
            max(self.divergence, 0.0) / self.count,
            state_dtype,
        )


def _compare(reference: WindowRunner, runner: WindowRunner, tokens: Sequence[int], plain: Sums, found: Sums) -> None:
    expected = reference.hidden(tokens[:-1])
    hidden = expected if runner is reference else runner.hidden(tokens[:-1])
    targets = torch.tensor(tokens[1:], device=hidden.device)
    for part in row_slices(len(targets), reference.network.spec.vocab_size):
        exact = reference.network.compute_logits(expected[part]).log_softmax(-1)
        plain.add(exact, exact, targets[part])
        if runner is not reference:
            found.add(runner.network.compute_logits(hidden[part]).log_softmax(-1), exact, targets[part])
