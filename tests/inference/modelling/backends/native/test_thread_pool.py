"""A program's threads stay together over all of its operators: the same bits as alone, and errors come through."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from inference.modelling.backends.native.packing import pack_native
from inference.modelling.backends.native.program import Program, record

ROUNDS = 30


@pytest.fixture(params=[2, 4])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """More threads than one, also more than there are processors."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def alone(function, *inputs: torch.Tensor) -> torch.Tensor:
    """What one thread computes."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    result = function(*inputs)
    torch.set_num_threads(before)
    return result


def program_of(function, *inputs: torch.Tensor) -> Program:
    _, recording = record(lambda: function(*inputs), inputs)
    return Program(recording)


@torch.inference_mode()
@pytest.mark.parametrize("rows", [1, 3, 12, 40])
@pytest.mark.parametrize(
    ("form", "dtype"), [("int8", torch.float32), ("int4", torch.bfloat16), ("bfloat16", torch.bfloat16)]
)
def test_products_are_those_of_one_thread(threads: int, rows: int, form: str, dtype: torch.dtype) -> None:
    first = pack_native(torch.randn(1100, 640, dtype=dtype), form)
    second = pack_native(torch.randn(640, 1100, dtype=dtype), form)

    def step(x: torch.Tensor) -> torch.Tensor:
        for _ in range(4):
            x = torch.ops.blazr.norm(second.linear(first.linear(x, None), None), None, None, 1e-6, 0.0, False)
        return x

    program = program_of(step, torch.randn(rows, 640, dtype=dtype))
    for _ in range(ROUNDS):
        x = torch.randn(rows, 640, dtype=dtype)
        assert torch.equal(program.run([x]), alone(step, x))


@torch.inference_mode()
def test_an_error_of_any_thread_ends_the_run_and_the_next_one_works(threads: int) -> None:
    tokens, heads, width = 4096, 8, 64
    key, value = torch.randn(2, tokens, heads, width)
    starts, lengths, first_rows = torch.tensor([0]), torch.tensor([tokens]), torch.tensor([0, 1])
    weight = pack_native(torch.randn(heads * width, heads * width), "float32")

    def step(query: torch.Tensor, blocks: torch.Tensor) -> torch.Tensor:
        context = blocks, starts, lengths, first_rows, 1
        mixed = torch.ops.blazr.paged_attention(query, key, value, *context, width, 0.1, 0, 0.0)
        return weight.linear(mixed.flatten(1), None)

    query, blocks = torch.randn(1, heads, width), torch.arange(tokens, dtype=torch.int32)
    program = program_of(step, query, blocks)
    expected = alone(step, query, blocks)
    for broken in (0, tokens // 2, tokens - 1):
        wrong = blocks.clone()
        wrong[broken] = tokens
        with pytest.raises(IndexError, match=f"slot {tokens} of a cache"):
            program.run([query, wrong])
        assert torch.equal(program.run([query, blocks]), expected)


@torch.inference_mode()
def test_other_libraries_products_keep_their_own_threads(threads: int) -> None:
    weight, packed = torch.randn(1024, 1024), pack_native(torch.randn(1024, 1024), "float32")

    def step(x: torch.Tensor) -> torch.Tensor:
        return packed.linear(torch.mm(x, weight), None)

    program = program_of(step, torch.randn(8, 1024))
    x = torch.randn(8, 1024)
    torch.testing.assert_close(program.run([x]), step(x))
