"""PredictionHead against transformers' layers behind the formula of the report, for each family that has heads."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from inference.errors import MissingTensor
from inference.modelling.forward_batch import AttentionMetadata, ForwardBatch, PrefillChunk
from inference.modelling.weights.loader import load_prediction_head
from tests.inference.modelling.harness import load_directory
from tests.inference.modelling.heads import CASES, VOCAB, load_with_head, write_checkpoint

BLOCK = 4


def batch_of(tokens: list[int], first: int, start: int) -> ForwardBatch:
    """One sequence's chunk, in blocks from 1 on.

    Args:
        first: Position of the sequence's first row.
        start: Rows of the sequence before the chunk.
    """
    stop = start + len(tokens)
    places = torch.arange(start, stop)
    count = -(-stop // BLOCK)
    is_decode = len(tokens) == 1 and start > 0
    return ForwardBatch(
        input_ids=torch.tensor(tokens),
        positions=places + first,
        slot_mapping=places + BLOCK,
        state_slots=torch.zeros(1, dtype=torch.int64),
        num_decodes=int(is_decode),
        prefills=() if is_decode else (PrefillChunk(0, len(tokens), start, 0, 0),),
        attention=AttentionMetadata(
            blocks=torch.arange(1, count + 1, dtype=torch.int32),
            starts=torch.zeros(1, dtype=torch.int64),
            lengths=torch.tensor([stop]),
            first_rows=torch.tensor([0, len(tokens)]),
            block_size=BLOCK,
        ),
    )


def states_of(head, rows: int = 64):
    return [{part.name: torch.full((rows, *part.shape), 7.0) for part in layer.state()} for layer in head.spec.layers]


@torch.inference_mode()
@pytest.mark.parametrize("name", CASES)
def test_matches_the_reference(name, tmp_path):
    reference = write_checkpoint(name, tmp_path)
    network, head = load_with_head(tmp_path)
    tokens = torch.randint(0, VOCAB, (25,), generator=torch.Generator().manual_seed(1)).tolist()
    rows = reference.rows_of_model(tokens[:-1])
    wanted, fed = reference.logits(rows, tokens[1:])
    for chunk in (24, 7, 1):
        states, logits, out = states_of(head), [], []
        for start in range(0, 24, chunk):
            part = slice(start, min(start + chunk, 24))
            found = head(network, batch_of(tokens[1:][part], 0, start), rows[part], states)
            out.append(found.clone())
            logits.append(head.compute_logits(network, found))
        assert (torch.cat(logits) - wanted).abs().max() < 1e-4
        assert (torch.cat(out) - fed).abs().max() < 1e-4
    assert wanted.argmax(-1).unique().numel() > 5


@torch.inference_mode()
@pytest.mark.parametrize("name", ["deepseek_v3", "qwen3_5"])
def test_a_sequence_may_begin_at_a_later_position(name, tmp_path):
    """Rotations depend on differences of positions only, so the rows are the same."""
    reference = write_checkpoint(name, tmp_path)
    network, head = load_with_head(tmp_path)
    tokens = torch.randint(0, VOCAB, (13,), generator=torch.Generator().manual_seed(1)).tolist()
    rows = reference.rows_of_model(tokens[:-1])
    found = [head(network, batch_of(tokens[1:], first, 0), rows, states_of(head)).clone() for first in (0, 9)]
    assert (found[0] - found[1]).abs().max() < 1e-4


@torch.inference_mode()
def test_tables_of_its_own_are_used(tmp_path):
    write_checkpoint("qwen3_5", tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    table = tensors["model.embed_tokens.weight"].flip(0).contiguous()
    save_file(tensors | {"mtp.embed_tokens.weight": table, "mtp.lm_head.weight": table.clone()}, path)
    network, head = load_with_head(tmp_path)
    rows = torch.randn(3, network.spec.hidden_size, generator=torch.Generator().manual_seed(1))
    shared, own = batch_of([1, 2, 3], 0, 0), batch_of([VOCAB - 2, VOCAB - 3, VOCAB - 4], 0, 0)
    found = head(network, own, rows, states_of(head))
    logits = head.compute_logits(network, found)
    head.embed_tokens = head.lm_head = None
    same = head(network, shared, rows, states_of(head))
    assert torch.equal(found, same)
    assert (logits.flip(-1) - head.compute_logits(network, same)).abs().max() < 1e-5


def test_the_loader_names_a_missing_parameter(tmp_path):
    write_checkpoint("qwen3_5", tmp_path)
    spec = load_directory(tmp_path).spec.prediction_head
    broken = replace(spec, parameters={key: value for key, value in spec.parameters.items() if key != "eh_proj.weight"})
    with pytest.raises(MissingTensor, match="eh_proj"):
        load_prediction_head(broken, [tmp_path / "model.safetensors"], dtype=torch.float32)
