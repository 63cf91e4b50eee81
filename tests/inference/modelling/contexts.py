"""Attention metadata of sequences whose slots a test chose."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from inference.modelling.forward_batch import AttentionMetadata


def contexts_of(
    slots: Sequence[torch.Tensor], counts: Sequence[int], block_size: int = 1, device: torch.device | str = "cpu"
) -> AttentionMetadata:
    """Metadata of sequences with the given physical slots, whole blocks of them in order, and numbers of new tokens."""
    lengths = torch.tensor([len(own) for own in slots])
    blocks = [own[::block_size] // block_size for own in slots]
    numbers = torch.tensor([len(own) for own in blocks])
    return AttentionMetadata(
        blocks=torch.cat(blocks).int().to(device),
        starts=(numbers.cumsum(0) - numbers).to(device),
        lengths=lengths.to(device),
        first_rows=torch.tensor([0, *counts]).cumsum(0).to(device),
        block_size=block_size,
    )
