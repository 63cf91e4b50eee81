"""Train the demo model from the Python help, from nothing to a checkpoint, offline and with a fixed seed."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch.nn import functional

from inference.demo.corpus import CHAT_TEMPLATE, END_OF_TEXT, encode_documents, load_documents, train_tokenizer
from inference.demo.network import DemoConfig, DemoNetwork

DEFAULT_STEPS = 380
SEED = 7
BATCH_SIZE = 8
SEQUENCE_LENGTH = 128
HELD_OUT_SHARE = 0.04
MATRIX_LEARNING_RATE = 0.02
OTHER_LEARNING_RATE = 4e-3
BALANCE_WEIGHT = 0.01


@dataclass(frozen=True, slots=True)
class TrainingReport:
    """One moment of the training.

    Attributes:
        step: Steps done, of ``total``.
        loss: Mean loss of the last steps, nats per token.
        seconds_left: Estimate from the pace so far.
    """

    step: int
    total: int
    loss: float
    seconds_left: float


@dataclass(frozen=True, slots=True)
class DemoResult:
    """What came out: the directory, sizes, and the held-out loss in bits per character."""

    directory: Path
    num_parameters: int
    bits_per_character: float
    seconds: float


class Muon(torch.optim.Optimizer):
    """Momentum, orthogonalised by five Newton-Schulz iterations, for matrices.

    Source: Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/ (coefficients of that page).
    """

    def __init__(self, parameters: list[torch.nn.Parameter], lr: float, momentum: float = 0.95) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                buffer = state.setdefault("momentum", torch.zeros_like(parameter))
                buffer.lerp_(parameter.grad, 1 - group["momentum"])
                update = orthogonalised(parameter.grad.lerp(buffer, group["momentum"]))
                rows, columns = parameter.shape
                parameter.add_(update, alpha=-group["lr"] * math.sqrt(max(1.0, rows / columns)))


def orthogonalised(matrix: torch.Tensor) -> torch.Tensor:
    """The nearest matrix with all singular values about 1."""
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = matrix.shape[0] > matrix.shape[1]
    x: torch.Tensor = matrix.T if tall else matrix
    x = x / (x.norm() + 1e-7)
    for _ in range(5):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if tall else x


def create_demo(
    directory: Path,
    *,
    steps: int = DEFAULT_STEPS,
    seed: int = SEED,
    config: DemoConfig | None = None,
    on_report: Callable[[TrainingReport], None] | None = None,
) -> DemoResult:
    """Train the demo model and write it as an oxidizr checkpoint (bfloat16) with its tokenizer.

    The same seed and steps give the same weights on the same machine and torch build.

    Args:
        directory: Created; files in it are replaced.
        steps: Training steps of 8 × 128 tokens; the default takes about a minute on two cores.
        on_report: Called after every step.
    """
    started = time.monotonic()
    config = config or DemoConfig()
    torch.manual_seed(seed)
    documents = load_documents(seed)
    tokenizer = train_tokenizer(documents, config.vocab_size)
    held_out = max(1, round(len(documents) * HELD_OUT_SHARE))
    stream = torch.tensor(encode_documents(tokenizer, documents[held_out:]))
    network = DemoNetwork(config)
    _train(network, stream, steps, seed, on_report)
    characters = sum(len(document.text) for document in documents[:held_out])
    bits = _held_out_bits(network, torch.tensor(encode_documents(tokenizer, documents[:held_out]))) / characters
    _write(directory, network, tokenizer.to_str(pretty=False))
    return DemoResult(
        directory, sum(parameter.numel() for parameter in network.parameters()), bits, time.monotonic() - started
    )


def _train(
    network: DemoNetwork,
    stream: torch.Tensor,
    steps: int,
    seed: int,
    on_report: Callable[[TrainingReport], None] | None,
) -> None:
    matrices: list[torch.nn.Parameter] = []
    others: list[torch.nn.Parameter] = []
    for name, parameter in network.named_parameters():
        is_matrix = parameter.dim() == 2 and "embed_tokens" not in name and "lm_head" not in name
        (matrices if is_matrix else others).append(parameter)
    optimisers: list[torch.optim.Optimizer] = [
        Muon(matrices, MATRIX_LEARNING_RATE),
        torch.optim.AdamW(others, OTHER_LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.0),
    ]
    base_rates = [optimiser.param_groups[0]["lr"] for optimiser in optimisers]
    generator = torch.Generator().manual_seed(seed)
    offsets = torch.arange(SEQUENCE_LENGTH + 1)
    started, smooth = time.monotonic(), 0.0
    for step in range(steps):
        begins = torch.randint(0, len(stream) - SEQUENCE_LENGTH - 1, (BATCH_SIZE,), generator=generator)
        tokens = stream[begins[:, None] + offsets]
        logits = network(tokens[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        torch.autograd.backward(loss + BALANCE_WEIGHT * network.balance_loss())
        # Warm up over 3 %, hold, cool down linearly over the last 60 %.
        rate = min(1.0, (step + 1) / max(1, 0.03 * steps), max(0.02, (steps - step) / (0.6 * steps)))
        for optimiser, base in zip(optimisers, base_rates, strict=True):
            optimiser.param_groups[0]["lr"] = base * rate
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        smooth = loss.item() if step == 0 else 0.95 * smooth + 0.05 * loss.item()
        if on_report is not None:
            pace = (time.monotonic() - started) / (step + 1)
            on_report(TrainingReport(step + 1, steps, smooth, pace * (steps - step - 1)))


@torch.inference_mode()
def _held_out_bits(network: DemoNetwork, stream: torch.Tensor) -> float:
    """Total bits of the held-out stream, in windows of twice the training length."""
    window, nats = 2 * SEQUENCE_LENGTH, 0.0
    for at in range(0, len(stream) - 1, window):
        tokens = stream[at : at + window + 1]
        logits = network(tokens[None, :-1])[0]
        nats += functional.cross_entropy(logits, tokens[1:], reduction="sum").item()
    return nats / math.log(2)


def _write(directory: Path, network: DemoNetwork, tokenizer_json: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    weights = {name: value.to(torch.bfloat16).contiguous() for name, value in network.state_dict().items()}
    save_file(weights, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(network.config.to_json(), indent=2) + "\n")
    (directory / "tokenizer.json").write_text(tokenizer_json)
    tokenizer_config = {"eos_token": END_OF_TEXT, "bos_token": None, "chat_template": CHAT_TEMPLATE}
    (directory / "tokenizer_config.json").write_text(json.dumps(tokenizer_config, indent=2) + "\n")
