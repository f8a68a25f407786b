"""Types whose bits or rounding need care; random programs move and reduce all types."""

from typing import Any

import torch
import torch.distributed as dist

OPERATIONS = ("SUM", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")
ODD_BYTES = [[2, 255, 0, 4, 0, 1], [1, 0, 0, 3, 128, 1], [6, 0, 0, 12, 0, 1]]


def combine_odd_bools() -> dict[str, list[int]]:
    """Return the result bytes of each operation on bools that have other bytes than 0 and 1.

    Each list is reduced once as it is, and once repeated 40,000 times.
    """
    mine = torch.tensor(ODD_BYTES[dist.get_rank()], dtype=torch.uint8)
    found = {}
    for name in OPERATIONS:
        for times in (1, 40_000):
            tensor = mine.repeat(times).view(torch.bool)
            dist.all_reduce(tensor, getattr(dist.ReduceOp, name))
            rows = tensor.view(torch.uint8).view(times, -1)
            found[f"{name} {times}"] = rows.unique(dim=0).tolist()
    return found


def test_every_byte_but_0_is_true(ranks: Any) -> None:
    bools = (torch.tensor(ODD_BYTES) != 0).to(torch.uint8)
    every, some = bools.min(0).values.tolist(), bools.max(0).values.tolist()
    odd = (bools.sum(0) % 2).tolist()
    expected = {"SUM": some, "MAX": some, "BOR": some, "BXOR": odd}
    for found in ranks(combine_odd_bools, 3, "ringfold").results():
        for call, rows in found.items():
            assert rows == [expected.get(call.split()[0], every)], call


def reduce_fp8() -> Any:
    """Reduce 1, 2 and 3, of which all partial results are exact."""
    operations = (dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.AVG, dist.ReduceOp.PRODUCT)
    found = []
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        for is_async in (False, True):
            tensors = [torch.full((5,), dist.get_rank() + 1.0).to(dtype) for _ in operations]
            for tensor, operation in zip(tensors, operations, strict=True):
                work = dist.all_reduce(tensor, operation, async_op=is_async)
                if work is not None:
                    work.wait()
            found.append([tensor.float().unique().tolist() for tensor in tensors])
    return found


def test_both_fp8_types_are_reduced(ranks: Any) -> None:
    for found in ranks(reduce_fp8, 3, "ringfold").results():
        assert found == [[[6.0], [3.0], [2.0], [6.0]]] * 4


UNSUPPORTED = [
    (torch.float8_e4m3fnuz, dist.ReduceOp.SUM),
    (torch.float8_e8m0fnu, dist.ReduceOp.SUM),
    # torch itself does not divide these.
    (torch.uint32, dist.ReduceOp.AVG),
]


def compute_with_what_has_no_sum() -> Any:
    found = []
    for dtype, operation in UNSUPPORTED:
        try:
            dist.all_reduce(torch.zeros(3).to(dtype), operation)
        except Exception as error:
            found.append(
                (isinstance(error, NotImplementedError | ValueError | TypeError), str(error))
            )
    # No call was started, and the group still works.
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    return found, tensor.item()


def test_what_has_no_arithmetic_is_refused_and_the_group_goes_on(ranks: Any) -> None:
    for refusals, total in ranks(compute_with_what_has_no_sum, 2, "ringfold").results():
        assert total == 2 and len(refusals) == len(UNSUPPORTED)
        for (fitting, text), due in zip(refusals, ("float8", "float8", "avg"), strict=True):
            assert fitting and due in text, text


def add_denormals() -> Any:
    """Add numbers that are zeros to a rank with flush-to-zero, which rank 0 sets."""
    if dist.get_rank() == 0:
        assert torch.set_flush_denormal(True)
    found = []
    for count in (4, 1000, 300_000):
        tensor = torch.full((count,), 1, dtype=torch.int32).view(torch.float32)
        started = tensor.clone()
        dist.all_reduce(tensor)
        dist.all_reduce(started, async_op=True).wait()
        found += [tensor.view(torch.int32).unique(), started.view(torch.int32).unique()]
    return found


def test_flushing_denormals_on_one_rank_changes_no_sum(ranks: Any) -> None:
    for found in ranks(add_denormals, 2, "ringfold").results():
        assert all(bits.tolist() == [2] for bits in found), found


def add_ones_to_large_numbers() -> list[float]:
    """Return the extremes of sums that rounding each addition would leave at the large number."""
    sums = []
    for dtype, large in ((torch.bfloat16, 256), (torch.float16, 2048)):
        for count in (1, 37, 100_000):
            x = torch.full((count,), large if dist.get_rank() == 0 else 1, dtype=dtype)
            dist.all_reduce(x)
            sums += [x.min().item() - large, x.max().item() - large]
    return sums


def test_sums_of_16_bits_are_rounded_once_on_one_host(ranks: Any) -> None:
    """docs/guides/from-gloo.md promises this; with gloo, some sums stay at the large number."""
    assert ranks(add_ones_to_large_numbers, 3, "ringfold").results() == [[2.0] * 12] * 3
