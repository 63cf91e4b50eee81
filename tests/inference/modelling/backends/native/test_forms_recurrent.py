"""The recurrent layers' kernels against the layers' PyTorch form in float64, and what must hold to the bit."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from inference.modelling.backends.backend import Backend, NativeBackend
from inference.modelling.forward_batch import ForwardBatch, LayerState, PrefillChunk
from inference.modelling.layers.conv import CausalConv1d
from inference.modelling.layers.gated_delta import GatedDelta
from inference.modelling.layers.kimi_delta import KimiDelta
from inference.modelling.layers.lightning import LightningAttention
from inference.modelling.layers.linear import Linear
from inference.modelling.layers.mamba1 import HeadProjection, Mamba1Mixer, StepProjection
from inference.modelling.layers.mamba2 import Mamba2Mixer
from inference.modelling.layers.mamba3 import Mamba3Mixer
from inference.modelling.layers.mlstm import MLSTM
from inference.modelling.layers.recurrent import GatedNorm, RecurrentMixer
from inference.modelling.layers.rg_lru import RGLRU
from inference.modelling.layers.rwkv import ChannelMix, TimeMix
from inference.modelling.specs.layers import Mamba1Spec, Mamba2Spec
from inference.modelling.specs.linear import (
    GatedDeltaSpec,
    KimiDeltaSpec,
    LightningSpec,
    Mamba3Spec,
    MLSTMSpec,
    RGLRUSpec,
)
from inference.modelling.specs.parts import NormSpec
from inference.modelling.specs.rwkv import ChannelMixSpec, TimeMixSpec

HIDDEN = 24
SLOTS = 7
RMS = NormSpec("rms", 1e-5)


def mamba2(heads: int, width: int, size: int, groups: int, **options: object) -> Mamba2Spec:
    inner = heads * width
    defaults = {"conv_kernel": 4, "norm_group_size": inner, "gated_norm": RMS}
    return Mamba2Spec(inner, heads, width, size, groups, **{**defaults, **options})


def mamba3(heads: int, width: int, size: int, groups: int, **options: object) -> Mamba3Spec:
    defaults = {"conv_kernel": None, "complex_rope": True, "mimo_rank": 0, "gated_norm": RMS, "bc_norm": RMS}
    return Mamba3Spec(heads * width, heads, width, size, groups, **{**defaults, **options})


LAYERS = {
    "mamba2": mamba2(3, 16, 32, 1),
    "mamba2-odd": mamba2(4, 7, 21, 2, conv_kernel=3, conv_bias=False, activation="gelu", norm_group_size=14),
    "mamba2-wide": mamba2(2, 72, 256, 2, norm_before_gate=True, norm_group_size=72),
    "mamba2-limits": mamba2(6, 5, 16, 3, dt_min=0.05, dt_max=0.3, gated_norm=None, activation="relu2"),
    "mamba2-kernel1": mamba2(2, 33, 17, 1, conv_kernel=1, activation="gelu_tanh", a_override="-(1..H)"),
    "mamba2-weightless": mamba2(2, 8, 48, 1, conv_kernel=2, gated_norm=NormSpec("rms", 1e-3, weightless=True)),
    "mamba2-offset": mamba2(20, 4, 16, 4, gated_norm=NormSpec("rms", 1e-3, offset=1.0), activation="relu"),
    "mamba3": mamba3(3, 16, 32, 1),
    "mamba3-conv-groups": mamba3(4, 5, 18, 2, conv_kernel=4),
    "mamba3-real-odd": mamba3(2, 9, 7, 1, complex_rope=False, conv_kernel=2),
    "mamba3-mimo": mamba3(2, 6, 16, 2, mimo_rank=3, dt_max=3.0),
    "mamba1": Mamba1Spec(40, 16, 4, 5),
    "mamba1-odd": Mamba1Spec(19, 5, 3, 2, conv_bias=False, inner_norm=RMS),
    "mamba1-heads": Mamba1Spec(60, 16, 4, 5, num_heads=3),
    "mamba1-growing": Mamba1Spec(32, 16, 4, 3, positive_a=True, state_clamp=30.0),
    "delta": GatedDeltaSpec(2, 4, 16, 32, 4, RMS),
    "delta-odd": GatedDeltaSpec(3, 3, 7, 21, 2, NormSpec("rms", 1e-3), beta_scale=2.0),
    "delta-sigmoid": GatedDeltaSpec(2, 4, 16, 32, 4, RMS, gate_activation="sigmoid"),
    "delta-wide": GatedDeltaSpec(1, 2, 40, 136, 3, RMS),
    "kimi": KimiDeltaSpec(3, 16, 4, RMS, 5, 7),
    "kimi-odd": KimiDeltaSpec(2, 21, 3, RMS, None, None, -5.0),
    "lightning": LightningSpec(4, 16, 0.7, RMS),
    "lightning-odd": LightningSpec(3, 21, 1.0, RMS, "gelu"),
    "rg-lru": RGLRUSpec(160, 2, 4),
    "rg-lru-odd": RGLRUSpec(63, 3, 3, "silu"),
    "rg-lru-wide": RGLRUSpec(150, 1, 2),
    "mlstm": MLSTMSpec(3, 16, 32, 15.0, 1e-6, 1e-6),
    "mlstm-odd": MLSTMSpec(2, 7, 21, 5.0, 1e-3, 1e-6),
    "mlstm-wide": MLSTMSpec(1, 40, 150, 15.0, 1e-6, 1e-6),
    "time-mix": TimeMixSpec(HIDDEN, 48),
    "time-mix-odd": TimeMixSpec(HIDDEN, 21),
    "channel-mix": ChannelMixSpec(HIDDEN, 30),
}
MIXERS = {
    Mamba1Spec: Mamba1Mixer, Mamba2Spec: Mamba2Mixer, Mamba3Spec: Mamba3Mixer, GatedDeltaSpec: GatedDelta,
    KimiDeltaSpec: KimiDelta, LightningSpec: LightningAttention, RGLRUSpec: RGLRU,
    MLSTMSpec: MLSTM, TimeMixSpec: TimeMix, ChannelMixSpec: ChannelMix,
}  # fmt: skip
Spec = (
    Mamba1Spec | Mamba2Spec | Mamba3Spec | GatedDeltaSpec | KimiDeltaSpec | LightningSpec | RGLRUSpec | MLSTMSpec
    | TimeMixSpec | ChannelMixSpec
)  # fmt: skip


def make_layer(spec: Spec, seed: int = 0) -> RecurrentMixer:
    """A layer with random weights of a sensible scale."""
    layer: RecurrentMixer = MIXERS[type(spec)](spec, HIDDEN)
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in layer.named_parameters():
        scale = 1.0 if parameter.dim() < 2 else parameter.shape[-1] ** -0.5
        parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
        if name.endswith("norm.weight"):
            parameter.add_(1.0)
    return layer


def make_states(spec: Spec) -> LayerState:
    generator = torch.Generator().manual_seed(5)
    states = {part.name: torch.randn(SLOTS, *part.shape, generator=generator) for part in spec.state()}
    if "weight_state" in states:
        states["weight_state"].abs_()  # a sum of weights
    return states


def stored(spec: Spec, states: LayerState, dtype: torch.dtype) -> LayerState:
    """The states in the type that ``state_dtype`` gives them, where it gives them one."""
    kinds = {part.name: part.dtype for part in spec.state()}
    return {name: tensor.to(dtype if kinds[name] == "state" else tensor.dtype) for name, tensor in states.items()}


def make_batch(runs: list[tuple[int, int, int]]) -> ForwardBatch:
    """A step of (rows, slot, context) per sequence, decodes first."""
    decodes = sum(count == 1 and context > 0 for count, _, context in runs)
    assert all(count == 1 and context for count, _, context in runs[:decodes])
    total = sum(count for count, _, _ in runs)
    chunks, row = [], 0
    for index, (count, slot, context) in enumerate(runs):
        if index >= decodes:
            chunks.append(PrefillChunk(row, row + count, context, index, slot))
        row += count
    return ForwardBatch(
        input_ids=torch.zeros(total, dtype=torch.int64),
        positions=torch.zeros(total, dtype=torch.int64),
        slot_mapping=torch.zeros(total, dtype=torch.int64),
        state_slots=torch.tensor([slot for _, slot, _ in runs]),
        num_decodes=decodes,
        prefills=tuple(chunks),
    )


CPU = torch.device("cpu")


def run(layer: RecurrentMixer, hidden: torch.Tensor, batch: ForwardBatch, states: LayerState) -> torch.Tensor:
    NativeBackend(CPU, hidden.dtype).bind(layer)
    with torch.inference_mode():
        return layer(hidden, batch, states)


def values(rows: int, seed: int = 9, scale: float = 1.0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (torch.randn(rows, HIDDEN, generator=torch.Generator().manual_seed(seed)) * scale).to(dtype)


def clone(states: LayerState) -> LayerState:
    return {name: tensor.clone() for name, tensor in states.items()}


def reference(layer: RecurrentMixer, hidden: torch.Tensor, batch: ForwardBatch, states: LayerState) -> torch.Tensor:
    Backend(CPU, hidden.dtype).bind(layer)
    with torch.inference_mode():
        return layer(hidden, batch, states)


def assert_close(found: torch.Tensor, wanted: torch.Tensor, tolerance: float) -> None:
    assert torch.isfinite(found).all()
    if wanted.numel():  # a convolution of one tap keeps no tail
        scale = max(1.0, wanted.abs().max().item())
        assert (found.double() - wanted.double()).abs().max().item() <= tolerance * scale


MIXED = [(1, 3, 8), (1, 1, 2), (5, 6, 0), (70, 2, 11), (1, 4, 0), (129, 5, 0)]


@pytest.mark.parametrize("name", LAYERS)
def test_a_mixed_step_is_the_references(name: str) -> None:
    """Decodes, fresh and later chunks of one and of many rows; outputs, states, and slots that aren't the batch's."""
    spec = LAYERS[name]
    layer, states = make_layer(spec), make_states(spec)
    batch, hidden = make_batch(MIXED), values(sum(count for count, _, _ in MIXED))
    wanted_states, before = clone(states), clone(states)
    wanted = reference(layer, hidden, batch, wanted_states)
    found = run(layer, hidden, make_batch(MIXED), states)
    assert_close(found, wanted, 3e-5)
    for part, tensor in states.items():
        assert_close(tensor, wanted_states[part], 3e-5)
        assert torch.equal(tensor[0], before[part][0])


@pytest.mark.parametrize("name", LAYERS)
def test_cuts_anywhere_give_the_same(name: str) -> None:
    spec = LAYERS[name]
    layer, hidden = make_layer(spec), values(140)
    whole_states, cut_states = make_states(spec), make_states(spec)
    wanted = run(layer, hidden, make_batch([(140, 2, 0)]), whole_states)
    parts = [
        run(layer, hidden[start:stop], make_batch([(stop - start, 2, start)]), cut_states)
        for start, stop in pairwise([0, 1, 2, 4, 64, 65, 66, 139, 140])
    ]
    assert_close(torch.cat(parts), wanted, 1e-4)
    for part, tensor in cut_states.items():
        assert_close(tensor, whole_states[part], 1e-4)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", [name for name in LAYERS if name != "lightning-odd"])
def test_a_sequence_is_the_same_in_any_batch(name: str, threads: int) -> None:
    """To the bit in float32, decoding and prefilling, with one thread or two.

    The projections compute row by row here: what is tested is the kernels between them. Left out is a layer of 63
    gates: torch rounds a sigmoid otherwise in the last elements of a tensor, if its size is no multiple of 16.
    """
    spec = LAYERS[name]
    layer = make_layer(spec)
    for child_name, child in list(layer.named_children()):
        if isinstance(child, Linear | StepProjection | HeadProjection):
            setattr(layer, child_name, _RowByRow(child))
    batch, hidden = make_batch(MIXED), values(sum(count for count, _, _ in MIXED))
    together, alone = make_states(spec), make_states(spec)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found = run(layer, hidden, batch, together)
    finally:
        torch.set_num_threads(before)
    row = 0
    for count, slot, context in MIXED:
        single = run(layer, hidden[row : row + count], make_batch([(count, slot, context)]), alone)
        assert torch.equal(found[row : row + count], single)
        row += count
    for part, tensor in together.items():
        assert torch.equal(tensor, alone[part]), part


class _RowByRow(torch.nn.Module):
    """A product, row by row on one thread: torch rounds otherwise for other numbers of either on some shapes."""

    def __init__(self, product: torch.nn.Module) -> None:
        super().__init__()
        self.product = product
        self.bias = getattr(product, "bias", None)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return torch.cat([self.product(row) for row in rows.split(1)])
        finally:
            torch.set_num_threads(before)


@pytest.mark.parametrize(
    "name",
    [
        "mamba2",
        "mamba2-odd",
        "mamba3",
        "mamba3-conv-groups",
        "mamba1",
        "mamba1-odd",
        "mamba1-heads",
        "delta",
        "rg-lru",
        "rg-lru-odd",
        "mlstm",
        "mlstm-odd",
        "time-mix",
        "time-mix-odd",
        "channel-mix",
    ],
)
def test_bfloat16_rows(name: str) -> None:
    spec = LAYERS[name]
    layer = make_layer(spec)
    for child in layer.modules():
        for parameter_name, parameter in child.named_parameters(recurse=False):
            if parameter_name not in getattr(child, "float32_parameters", ()):
                parameter.data = parameter.data.to(torch.bfloat16)
    hidden, batch = values(sum(count for count, _, _ in MIXED), dtype=torch.bfloat16), make_batch(MIXED)
    states, wanted_states = make_states(spec), make_states(spec)
    wanted = reference(layer, hidden, batch, wanted_states)
    found = run(layer, hidden, make_batch(MIXED), states)
    assert found.dtype == torch.bfloat16
    # One rounding more or less of a value before a product of 8 bits.
    assert_close(found, wanted, 2**-6)
    for part, tensor in states.items():
        assert tensor.dtype == torch.float32
        assert_close(tensor, wanted_states[part], 2e-2)


@pytest.mark.parametrize("name", LAYERS)
def test_states_in_bfloat16_are_widened_and_rounded_once(name: str) -> None:
    spec = LAYERS[name]
    layer, rounded = make_layer(spec), stored(spec, make_states(spec), torch.bfloat16)
    exact = {part: tensor.to(torch.float32, copy=True) for part, tensor in rounded.items()}
    hidden = values(sum(count for count, _, _ in MIXED))
    expected = run(layer, hidden, make_batch(MIXED), exact)
    assert torch.equal(run(layer, hidden, make_batch(MIXED), rounded), expected)
    for part, tensor in rounded.items():
        assert torch.equal(tensor, exact[part].to(tensor.dtype)), part
    assert torch.bfloat16 in {tensor.dtype for tensor in rounded.values()}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("scale", [0.0, 1e4])
def test_extreme_inputs_stay_finite(name: str, scale: float) -> None:
    """Steps of zero and of tens of thousands, decays from none to total."""
    spec = LAYERS[name]
    layer, states = make_layer(spec), make_states(spec)
    runs = [(1, 3, 8), (70, 2, 0), (66, 5, 3)]
    hidden, wanted_states = values(137, scale=scale), clone(states)
    wanted = reference(layer, hidden, make_batch(runs), wanted_states)
    found = run(layer, hidden, make_batch(runs), states)
    assert torch.isfinite(found).all()
    assert all(torch.isfinite(tensor).all() for tensor in states.values())
    if spec.kind == "mamba2":
        assert_close(found, wanted, 1e-3)


def test_a_decay_that_wipes_the_state_leaves_later_ones_their_digits() -> None:
    generator = torch.Generator().manual_seed(0)
    x, b, c = (torch.randn(64, 1, size, generator=generator) for size in (4, 5, 5))
    log_decay = -0.01 * torch.rand(64, 1, generator=generator)
    log_decay[3] = -1e30
    state = torch.randn(1, 1, 4, 5, generator=generator)
    exact = state[0, 0].double()
    wanted = []
    for t in range(64):
        exact = exact * log_decay[t].double().exp() + x[t, 0].double()[:, None] * b[t, 0].double()
        wanted.append(exact @ c[t, 0].double())
    ones, zeros = torch.ones(64, 1), torch.zeros(64, 1)
    runs = torch.tensor([[0, 64, 0, 0]])
    found = torch.ops.blazr.recur(x, ones, log_decay, zeros, b, c, runs, state, None, None, None)
    assert_close(found[:, 0], torch.stack(wanted), 1e-5)
    assert_close(state[0, 0], exact, 1e-5)


@pytest.mark.parametrize("kernel", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("width", [1, 16, 37])
def test_convolution(kernel: int, width: int) -> None:
    conv = CausalConv1d(width, kernel, bias=True, activation="silu")
    generator = torch.Generator().manual_seed(1)
    conv.weight.copy_(torch.randn(conv.weight.shape, generator=generator))
    conv.bias.copy_(torch.randn(width, generator=generator))
    runs = [(1, 3, 4), (1, 5, 1), (2, 1, 3), (9, 2, 0), (1, 4, 0), (3, 6, 9)]
    rows = torch.randn(sum(count for count, _, _ in runs), width, generator=generator)
    state = torch.randn(SLOTS, width, kernel - 1, generator=generator)
    wanted_state = state.clone()
    wanted = conv(rows, make_batch(runs), wanted_state)
    NativeBackend(CPU, rows.dtype).bind(conv)
    found = conv(rows, make_batch(runs), state)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    # Tails are inputs as they came in. A run of one row at a sequence's start leaves zeros before it in both forms.
    torch.testing.assert_close(state, wanted_state, rtol=0, atol=0)


@pytest.mark.parametrize("width", [5, 64])
@pytest.mark.parametrize("before_gate", [False, True])
def test_gated_norm_of_bfloat16_gates(width: int, before_gate: bool) -> None:
    norm = GatedNorm(NormSpec("rms", 1e-5), 2 * width, width, norm_before_gate=before_gate)
    norm.weight.copy_(torch.rand(2 * width))
    rows, gate = torch.randn(3, 2 * width), torch.randn(3, 2 * width).bfloat16()
    wanted = norm(rows, gate)
    NativeBackend(CPU, gate.dtype).bind(norm)
    torch.testing.assert_close(norm(rows, gate), wanted, rtol=2**-7, atol=1e-6)


@pytest.mark.parametrize(
    "runs",
    [
        [[0, 2, 1, 0]],
        [[0, 4, 1, 0]],
        [[1, 3, 1, 0]],
        [[0, 3, SLOTS, 0]],
        [[0, 3, -1, 0]],
        [[0, 2, 1, 0], [1, 2, 2, 0]],
        [[0, 3, 1, 0], [3, 0, 2, 0]],
    ],
)
def test_runs_outside_the_rows_or_states_are_refused(runs: list[list[int]]) -> None:
    rows, state, taps = torch.zeros(3, 4), torch.zeros(SLOTS, 4, 3), torch.zeros(4, 4)
    with pytest.raises(RuntimeError, match="runs"):
        torch.ops.blazr.causal_conv(rows, torch.tensor(runs), state, taps, None, 0)


def test_states_of_another_shape_are_refused() -> None:
    runs = torch.tensor([[0, 3, 1, 0]])
    with pytest.raises(RuntimeError, match="conv_state"):
        torch.ops.blazr.causal_conv(torch.zeros(3, 4), runs, torch.zeros(2, 5, 3), torch.zeros(4, 4), None, 0)
    with pytest.raises(RuntimeError, match="contiguous"):
        state = torch.zeros(2, 3, 4).transpose(1, 2)
        torch.ops.blazr.causal_conv(torch.zeros(3, 4), runs, state, torch.zeros(4, 4), None, 0)
    for dtype, words in ((torch.bfloat16, "conv_state: contiguous"), (torch.float16, "conv_state: .*float32.*Half")):
        state = torch.zeros(2, 5, 3, dtype=dtype)
        with pytest.raises(RuntimeError, match=words):
            torch.ops.blazr.causal_conv(torch.zeros(3, 4), runs, state, torch.zeros(4, 4), None, 0)


def test_growth_of_an_empty_state_with_enormous_steps() -> None:
    spec = replace(LAYERS["mamba1-growing"], state_clamp=30.0)
    layer, states = make_layer(spec), make_states(spec)
    layer.dt_proj.bias.fill_(500.0)
    found = run(layer, values(3), make_batch([(3, 1, 0)]), states)
    assert torch.isfinite(found).all()
    assert states["ssm_state"][1].abs().max().item() <= 30.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["mamba1-odd", "mamba2-odd", "delta-odd", "rg-lru-odd", "mlstm-odd", "time-mix-odd"])
def test_what_a_freed_slot_holds_is_not_read(name: str, dtype: torch.dtype) -> None:
    """NaN of a failed request neither reaches the next sequence of its slot nor those of others."""
    spec = LAYERS[name]
    layer, states = make_layer(spec), stored(spec, make_states(spec), dtype)
    for tensor in states.values():
        tensor[4] = torch.nan
    found = run(layer, values(6), make_batch([(1, 3, 8), (5, 4, 0)]), states)
    assert found.isfinite().all()
    assert all(tensor.isfinite().all() for tensor in states.values())


@pytest.mark.parametrize("name", ["rg-lru-odd", "mlstm-odd", "time-mix-odd"])
def test_nan_stays_in_its_own_sequence(name: str) -> None:
    spec = LAYERS[name]
    layer, states, hidden = make_layer(spec), make_states(spec), values(6)
    hidden[0] = torch.nan
    found = run(layer, hidden, make_batch([(1, 3, 8), (5, 4, 0)]), states)
    assert found[0].isnan().all()
    assert found[1:].isfinite().all()
    assert all(tensor[3].isnan().any() and tensor[4].isfinite().all() for tensor in states.values())


@pytest.mark.parametrize("size", [-300.0, 300.0])
def test_keys_beyond_the_range_of_e_to_them(size: float) -> None:
    layer, states = make_layer(LAYERS["time-mix"]), make_states(LAYERS["time-mix"])
    key, value, gate = torch.randn(3, 9, 48, generator=torch.Generator().manual_seed(3)).unbind(0)
    wanted_states, batch = clone(states), make_batch([(9, 2, 0)])
    Backend(CPU, key.dtype).bind(layer)
    wanted = layer.mix(key + size, value, gate, batch, wanted_states)
    NativeBackend(CPU, key.dtype).bind(layer)
    assert_close(layer.mix(key + size, value, gate, batch, states), wanted, 1e-5)
    for part, tensor in states.items():
        assert_close(tensor, wanted_states[part], 1e-5)
