"""Adapters that PEFT makes for tiny random checkpoints, and PEFT as the oracle of their logits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, XLoraConfig, get_peft_model
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, PretrainedConfig

from inference.modelling.adapters.network import NetworkAdapters
from inference.modelling.adapters.scaling_pass import ScalingPass
from inference.modelling.backends.backend import pack_weights
from inference.modelling.forward_batch import AdapterRows, ForwardBatch, LayerState
from inference.modelling.lora.modules import BaseModules
from inference.modelling.lora.plan import AdapterPlan
from inference.modelling.lora.xlora_plan import XLoraPlan
from inference.modelling.network import HybridForCausalLM
from models_registry.detection.xlora_files import read_files
from tests.inference.modelling.harness import SequenceRunner, load_directory
from tests.inference.modelling.huggingface import Oracle, make_checkpoint

TOLERANCE = 2e-4


def make_adapter(base: Path, directory: Path, *, seed: int = 1, amount: float = 0.5, **options: Any) -> Oracle:
    """Save an adapter with random factors for a checkpoint.

    Args:
        amount: Size of the factors: the change must show far above the tolerance.
        options: Of PEFT's ``LoraConfig``.

    Returns:
        A function from token ids (n,) to PEFT's logits (n, V).
    """
    model = AutoModelForCausalLM.from_pretrained(base, attn_implementation="eager").float().eval()
    adapted = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **options)).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in adapted.named_parameters():
            noise = torch.randn(value.shape, generator=generator)
            if "lora_magnitude" in name:
                value.mul_(1 + 0.3 * noise)
            elif "lora_" in name:
                value.copy_(amount * noise * value.shape[-1] ** -0.5)
            elif value.requires_grad:
                value.add_(0.3 * noise)
    adapted.save_pretrained(directory)

    def oracle(tokens: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            return adapted(tokens.unsqueeze(0), use_cache=False).logits[0].float()

    return oracle


def shapes_of(directory: Path) -> Callable[[str], tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for path in directory.glob("*.safetensors"):
        with safe_open(path, framework="pt") as handle:
            for name in handle.keys():  # noqa: SIM118
                shapes[name] = tuple(handle.get_slice(name).get_shape())
    return shapes.__getitem__


def plan_directory(
    network: HybridForCausalLM, base: Path, adapter: Path
) -> tuple[AdapterPlan | XLoraPlan, tuple[Path, ...]]:
    files = read_files(adapter)
    return files.plan(BaseModules(network.spec, shapes_of(base))), files.weight_files


def make_xlora(
    base: Path, directory: Path, adapters: Sequence[Mapping[str, Any]], *, seed: int = 5, **options: Any
) -> Oracle:
    """Save an X-LoRA with a random classifier for a checkpoint.

    Args:
        adapters: Options of ``make_adapter`` for each of its adapters.
        options: Of PEFT's ``XLoraConfig``.

    Returns:
        A function from token ids (n,) to PEFT's logits (n, V).
    """
    paths = {str(number): str(directory / str(number)) for number in range(len(adapters))}
    for number, own in enumerate(adapters):
        make_adapter(base, directory / str(number), seed=seed + number, **own)
    model = AutoModelForCausalLM.from_pretrained(base, attn_implementation="eager").float().eval()
    model.config.use_cache = False
    config = XLoraConfig(task_type="CAUSAL_LM", hidden_size=model.config.hidden_size, adapters=paths, **options)
    mixed = get_peft_model(model, config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for value in mixed.base_model.internal_xlora_classifier.parameters():
            value.copy_(torch.randn(value.shape, generator=generator))
    # PEFT saves the adapters again unless some are selected, and takes the classifier's layer 0 for the adapter 0's.
    mixed.save_pretrained(directory, selected_adapters=["default"])
    classifier = mixed.base_model.internal_xlora_classifier.state_dict()
    tensors = {f"base_model.internal_xlora_classifier.{name}": value for name, value in classifier.items()}
    save_file(tensors, str(directory / "adapter_model.safetensors"))

    def oracle(tokens: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            return mixed(input_ids=tokens.unsqueeze(0)).logits[0].float()

    return oracle


def plan_lora(network: HybridForCausalLM, base: Path, adapter: Path) -> tuple[AdapterPlan, Path]:
    plan, paths = plan_directory(network, base, adapter)
    assert isinstance(plan, AdapterPlan)
    return plan, paths[0]


class AdaptedNetwork:
    """A network as a step with adapters runs it.

    Attributes:
        rows: The adapters of the next step's rows, then those of the last one's.
    """

    def __init__(self, network: HybridForCausalLM, adapters: NetworkAdapters, runner: SequenceRunner) -> None:
        self._network, self._adapters = network, adapters
        self.rows: AdapterRows | None = None
        self._scaling = ScalingPass(
            network, adapters, lambda: [{k: v.clone() for k, v in layer.items()} for layer in runner.states]
        )

    def __call__(self, batch: ForwardBatch, states: Sequence[LayerState]) -> torch.Tensor:
        if self.rows is not None:
            batch.adapters = self.rows
            self.rows = self._scaling.run(batch)
        with self._adapters.running(self.rows):
            return self._network(batch, states)

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        with self._adapters.running(self.rows):
            return self._network.compute_logits(hidden)


@dataclass
class AdaptedRunner:
    """A network with adapters, run as an engine would."""

    network: HybridForCausalLM
    adapters: NetworkAdapters

    def run(self, slots: Sequence[int], prompts: Sequence[Sequence[int]], chunk: int) -> list[torch.Tensor]:
        """Logits of all tokens of each prompt, each through the adapter of its slot, all prompts in one batch."""
        runner = SequenceRunner(self.network)
        self.adapters.scaling_states = None
        network = runner.network = AdaptedNetwork(self.network, self.adapters, runner)
        parts: list[list[torch.Tensor]] = [[] for _ in prompts]
        longest = max(map(len, prompts))
        for at in range(0, longest, chunk):
            work = [(str(number), prompt[at : at + chunk]) for number, prompt in enumerate(prompts) if at < len(prompt)]
            is_decode = [len(tokens) == 1 and at > 0 for _, tokens in work]
            ordered = [item for item, one in zip(work, is_decode, strict=True) if one]
            ordered += [item for item, one in zip(work, is_decode, strict=True) if not one]
            of_rows = [slots[int(name)] for name, tokens in ordered for _ in tokens]
            present = tuple(sorted(set(of_rows) - {0}))
            rows = AdapterRows(torch.tensor(of_rows), present, any(map(self.adapters.is_eager, present)))
            network.rows = rows if present else None
            found = runner.step(work)
            for number, part in enumerate(parts):
                if str(number) in found:
                    part.append(found[str(number)])
        return [torch.cat(part) for part in parts]


def load_adapted(base: Path, adapters: Mapping[int, Path], *, pack: bool = True, num_slots: int = 4) -> AdaptedRunner:
    network = load_directory(base)
    if pack:
        pack_weights(network)
    resident = NetworkAdapters(network, num_slots)
    for slot, directory in adapters.items():
        resident.install(slot, resident.load(*plan_directory(network, base, directory)))
    return AdaptedRunner(network, resident)


def assert_parity(config: PretrainedConfig, directory: Path, *, tolerance: float = TOLERANCE, **options: Any) -> None:
    """An adapter of a checkpoint gives PEFT's logits in prefill, chunks and decodes, beside rows without one."""
    base, oracle = make_checkpoint(config, directory / "base")
    adapted_oracle = make_adapter(base, directory / "adapter", **options)
    tokens = torch.randint(0, config.vocab_size, (23,), generator=torch.Generator().manual_seed(3))
    plain, adapted = oracle(tokens), adapted_oracle(tokens)
    assert (plain - adapted).abs().max() > 20 * tolerance, "the adapter changes too little to be seen"
    runner = load_adapted(base, {1: directory / "adapter"})
    for chunk in (1, 5, 64):
        first, second, third = runner.run((1, 0, 1), [tokens.tolist()] * 3, chunk)
        torch.testing.assert_close(first, adapted, atol=tolerance, rtol=tolerance)
        torch.testing.assert_close(third, adapted, atol=tolerance, rtol=tolerance)
        torch.testing.assert_close(second, plain, atol=tolerance, rtol=tolerance)
