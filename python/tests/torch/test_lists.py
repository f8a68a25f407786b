"""Hooks select, encode, gather and keep elements; tested without training."""

import math
from typing import Any

import pytest
import torch
import torch.distributed as dist

from ringfold.errors import InvalidArgumentError
from ringfold.torch.hooks.buckets import Layout, Ledger
from ringfold.torch.hooks.exchange import gather
from ringfold.torch.hooks.topk import greatest
from ringfold.torch.hooks.wire import Exact, Powers, Signs

LAYOUT = Layout(("a", "b", "c"), (100, 50, 1))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_exact_lists_come_back_as_they_were(dtype: torch.dtype) -> None:
    indices = torch.tensor([0, 99, 150])
    values = torch.tensor([1.5, -2.0, 1e-3], dtype=dtype)
    sent = Exact().encode(indices, values, LAYOUT, dtype)
    assert sent.payload.dtype == torch.uint8 and sent.payload.numel() == 3 * (4 + dtype.itemsize)
    found = Exact().decode(sent.payload, LAYOUT, dtype)
    assert torch.equal(found[0].long(), indices) and torch.equal(found[1], values)


def test_powers_are_the_nearest_within_seven_steps_of_their_parameters_greatest() -> None:
    values = {
        0: 5.0,
        1: -2.9,
        2: 3.1,
        3: 5.0 / 64,
        4: 0.02,
        100: -1e-6,
        101: 0.6e-6,
        102: 1e-38,
        150: 0.0,
    }
    sent = Powers().encode(
        torch.tensor(list(values)), torch.tensor(list(values.values())), LAYOUT, torch.float32
    )
    # 5.0 is nearest to 4; 0.02 is more than seven steps below; 2^-20 is the nearest to 1e-6.
    expected = {0: 4.0, 1: -2.0, 2: 4.0, 3: 2.0**-4, 100: -(2.0**-20), 101: 2.0**-21}
    assert dict(zip(sent.indices.tolist(), sent.values.tolist(), strict=True)) == expected
    assert sent.payload.numel() == 4 * (3 + len(expected))
    indices, found = Powers().decode(sent.payload, LAYOUT, torch.float32)
    assert torch.equal(indices, sent.indices) and torch.equal(found, sent.values)


def test_words_have_room_for_their_greatest_index() -> None:
    layout = Layout(("a", "b"), (1 << 27, 1 << 27))
    indices = torch.tensor([0, (1 << 28) - 1])
    sent = Powers().encode(indices, torch.tensor([-1.0, -0.5]), layout, torch.float32)
    found = Powers().decode(sent.payload, layout, torch.float32)
    assert torch.equal(found[0], indices) and found[1].tolist() == [-1.0, -0.5]
    layout = Layout(("a",), (1 << 30,))
    indices = torch.tensor([0, (1 << 30) - 1, 5])
    sent = Signs(0.5).encode(indices, torch.tensor([-3.0, 2.0, math.nan]), layout, torch.float32)
    indices_found, values = Signs(0.5).decode(sent.payload, layout, torch.float32)
    assert torch.equal(indices_found.long(), indices)
    assert values[:2].tolist() == [-0.5, 0.5] and values[2].isnan()
    for code, bits in ((Powers(), 28), (Signs(1.0), 30), (Exact(), 31)):
        with pytest.raises(InvalidArgumentError, match=f"2\\^{bits}"):
            code.encode(indices, values, Layout(("a",), ((1 << bits) + 1,)), torch.float32)


@pytest.mark.parametrize("count", [1, 10, 1000, 20_000, 100_000])
@pytest.mark.parametrize("kind", ["normal", "few", "sorted", "strange"])
def test_the_greatest_are_found_whatever_a_sample_says(kind: str, count: int) -> None:
    generator = torch.Generator().manual_seed(count)
    values = torch.randn(100_000, generator=generator).abs()
    if kind == "few":
        values[500:] = 0
    if kind == "sorted":
        # The sample has only large elements.
        values = torch.arange(100_000).remainder(61).eq(0).float() * 2 + values.clamp(max=1)
    if kind == "strange":
        values[17], values[18] = math.nan, math.inf
    found = greatest(values, count)
    assert found.unique().numel() == count
    expected = values.topk(count).values.nan_to_num(nan=9, posinf=8)
    assert torch.equal(
        values[found].nan_to_num(nan=9, posinf=8).sort(descending=True).values, expected
    )


def test_a_ledger_moves_what_it_keeps_to_the_layout_that_asks() -> None:
    ledger = Ledger("one", "two")
    like = torch.zeros(0)
    one, two = ledger.flat(Layout(("a", "b", "c"), (2, 1, 3)), like)
    one.copy_(torch.arange(6.0))
    two.copy_(torch.arange(6.0) * 10)
    assert ledger.flat(Layout(("a", "b", "c"), (2, 1, 3)), like)[0] is one
    # Other parameters in another order, one of them new.
    parts = ledger.flat(Layout(("d", "c", "a"), (1, 3, 2)), like)
    assert [part.tolist() for part in parts] == [[0, 3, 4, 5, 0, 1], [0, 30, 40, 50, 0, 10]]
    assert [part.tolist() for part in ledger.flat(Layout(("b",), (1,)), like)] == [[2], [20]]
    saved = ledger.state_dict()
    assert {name: fields["two"].tolist() for name, fields in saved.items()} == {
        "a": [0, 10],
        "b": [20],
        "c": [30, 40, 50],
        "d": [0],
    }
    with pytest.raises(InvalidArgumentError, match="`e`"):
        ledger.holds(Layout(("a", "e"), (2, 1)))


def gather_lists(lengths: list[int]) -> Any:
    mine = torch.arange(lengths[dist.get_rank()], dtype=torch.uint8) + 10 * dist.get_rank()
    future, rows = gather(mine, lengths, None)
    future.wait()
    return [row.tolist() for row in rows]


@pytest.mark.parametrize("lengths", [[0, 5, 3], [4, 4, 4], [7, 0, 0], [3]])
def test_lists_of_all_lengths_are_gathered(ranks: Any, backend: str, lengths: list[int]) -> None:
    expected = [list(range(10 * rank, 10 * rank + length)) for rank, length in enumerate(lengths)]
    assert ranks(gather_lists, len(lengths), backend, lengths=lengths).results() == [
        expected
    ] * len(lengths)
