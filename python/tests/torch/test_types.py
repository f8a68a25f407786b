"""Every CPU data type of torch: moved by all calls that do not compute, reduced where possible."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

# Types that gloo can move.
GLOO_TYPES = [
    "uint8",
    "int8",
    "int32",
    "int64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "bool",
]
OTHER_TYPES = ["int16", "uint16", "uint32", "uint64", "complex32", "complex64", "complex128"]
OTHER_TYPES += [
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
]
COUNT = 37


def bits(name: str, rank: int, count: int = COUNT) -> Any:
    """Return arbitrary bits in this type; the same for every caller."""
    generator = torch.Generator().manual_seed(rank)
    if name == "bool":
        return torch.randint(2, (count,), generator=generator).to(torch.bool)
    size = torch.empty(0, dtype=getattr(torch, name)).element_size()
    return torch.randint(256, (count * size,), dtype=torch.uint8, generator=generator).view(
        getattr(torch, name)
    )


def as_bytes(tensor: Any) -> Any:
    return tensor.contiguous().view(torch.uint8)


def moves(name: str) -> dict[str, tuple[Any, Callable[[Any], object]]]:
    """Return the tensors for the result of each call, and the function that fills them."""
    rank, count = dist.get_rank(), dist.get_world_size()
    x = bits(name, rank)
    mine = [bits(name, 10 * rank + to) for to in range(count)]
    joined = torch.cat([as_bytes(each) for each in mine]).view(x.dtype)

    def empty(size: int = COUNT) -> Any:
        return torch.zeros(size, dtype=x.dtype)

    def several() -> Any:
        return [empty() for _ in range(count)]

    return {
        "broadcast": (x.clone(), lambda out: dist.broadcast(out, 1)),
        "all_gather": (several(), lambda out: dist.all_gather(out, x)),
        "all_gather_into_tensor": (
            empty(count * COUNT),
            lambda out: dist.all_gather_into_tensor(out, x),
        ),
        "gather": (several(), lambda out: dist.gather(x, out if rank == 1 else None, 1)),
        "scatter": (empty(), lambda out: dist.scatter(out, mine if rank == 1 else None, 1)),
        "all_to_all_single": (
            empty(count * COUNT),
            lambda out: dist.all_to_all_single(out, joined),
        ),
        "send": (empty(), lambda out: pass_on(x, out)),
    }


def move(names: list[str]) -> dict[str, Any]:
    """Return the bytes that every call moved, by type and call."""
    found: dict[str, Any] = {}
    for name in names:
        for call, (out, begin) in moves(name).items():
            try:
                begin(out)
                found[f"{name} {call}"] = (
                    [as_bytes(each) for each in out] if isinstance(out, list) else as_bytes(out)
                )
            except Exception as error:
                found[f"{name} {call}"] = repr(error)
    return found


def pass_on(x: Any, out: Any) -> None:
    rank, count = dist.get_rank(), dist.get_world_size()
    started = dist.isend(x, (rank + 1) % count)
    dist.recv(out, (rank - 1) % count)
    started.wait()


def check_moves(outcomes: list[Any], names: list[str]) -> None:
    count = len(outcomes)
    for rank, found in enumerate(outcomes):
        for name in names:
            xs = [as_bytes(bits(name, other)) for other in range(count)]
            blocks = [as_bytes(bits(name, 10 * other + rank)) for other in range(count)]
            expected = {
                "broadcast": xs[1],
                "all_gather": xs,
                "all_gather_into_tensor": torch.cat(xs),
                "scatter": blocks[1],
                "all_to_all_single": torch.cat(blocks),
                "send": xs[rank - 1],
            }
            if rank == 1:
                expected["gather"] = xs
            for call, value in expected.items():
                got = found[f"{name} {call}"]
                assert not isinstance(got, str), f"{name} {call}: {got}"
                pairs = zip(got, value, strict=True) if isinstance(value, list) else [(got, value)]
                assert all(torch.equal(*pair) for pair in pairs), f"{name} {call} on rank {rank}"


def test_types_are_moved(ranks: Any, backend: str) -> None:
    check_moves(ranks(move, 3, backend, names=GLOO_TYPES).results(), GLOO_TYPES)


def test_types_that_gloo_does_not_move_are_moved(ranks: Any) -> None:
    # Older releases of torch have fewer types.
    names = [name for name in OTHER_TYPES if hasattr(torch, name)]
    check_moves(ranks(move, 3, "ringfold", names=names).results(), names)


def values(name: str, rank: int) -> Any:
    """Return values so small that sums and products stay exact and in the type's range."""
    dtype = getattr(torch, name)
    if name == "bool":
        return (torch.arange(COUNT) + rank) % 3 == 0
    return ((torch.arange(COUNT) + rank) % 3 + 1).to(dtype)


FLOATS = ["float16", "bfloat16", "float32", "float64"]
SIGNED, UNSIGNED = ["int8", "int32", "int64"], ["uint8"]
OPERATIONS: dict[str, Any] = {
    "SUM": lambda stacked: stacked.sum(0),
    "PRODUCT": lambda stacked: stacked.prod(0),
    "MIN": lambda stacked: stacked.min(0).values,
    "MAX": lambda stacked: stacked.max(0).values,
}
BITWISE: dict[str, Any] = {
    "BAND": lambda a, b: a & b,
    "BOR": lambda a, b: a | b,
    "BXOR": lambda a, b: a ^ b,
}


def compute(names: list[str], operations: list[str]) -> dict[str, Any]:
    """Return results or errors of all_reduce, reduce, reduce_scatter by type and operation."""
    rank, count = dist.get_rank(), dist.get_world_size()
    found: dict[str, Any] = {}
    for name in names:
        for operation in operations:
            op = getattr(dist.ReduceOp, operation)
            reduced, at_root, block = (
                values(name, rank),
                values(name, rank),
                torch.zeros_like(values(name, rank)),
            )
            try:
                dist.all_reduce(reduced, op)
                dist.reduce(at_root, 0, op)
                dist.reduce_scatter(block, [values(name, rank)] * count, op)
                # Older releases of torch cannot pickle some types.
                results = [result.to(wide(name)) for result in (reduced, at_root, block)]
                found[f"{name} {operation}"] = (
                    results[0],
                    results[1] if rank == 0 else None,
                    results[2],
                )
            except Exception as error:
                found[f"{name} {operation}"] = repr(error)
    return found


ODD_BYTES = [[2, 255, 0, 4, 0, 1], [1, 0, 0, 3, 128, 1], [6, 0, 0, 12, 0, 1]]


def combine_odd_bools() -> dict[str, list[int]]:
    """Return the result bytes of each operation on bools that have other bytes than 0 and 1.

    Each list is reduced once as it is, and once repeated 40,000 times.
    """
    mine = torch.tensor(ODD_BYTES[dist.get_rank()], dtype=torch.uint8)
    found = {}
    for name in [*OPERATIONS, *BITWISE]:
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


def check_results(outcomes: list[Any], name: str, operation: str, expected: Any) -> None:
    for rank, found in enumerate(outcomes):
        got = found[f"{name} {operation}"]
        assert not isinstance(got, str), f"{name} {operation}: {got}"
        for call, result in zip(("all_reduce", "reduce", "reduce_scatter"), got, strict=True):
            if result is not None:
                assert torch.equal(result, expected), (
                    f"{call} of {name} {operation} on rank {rank}: {result}"
                )


def wide(name: str) -> Any:
    """Return the type in which results are compared: torch itself cannot add all of them."""
    return torch.float64 if name in FLOATS else torch.int64


def stacked(name: str, count: int) -> Any:
    return torch.stack([values(name, rank).to(wide(name)) for rank in range(count)])


def test_types_are_computed_with(ranks: Any, backend: str) -> None:
    # Only ringfold has 16-bit integers, and unsigned ones of more than 8 bits.
    names = (
        FLOATS
        + SIGNED
        + UNSIGNED
        + ([] if backend == "gloo" else ["int16", "uint16", "uint32", "uint64"])
    )
    outcomes = ranks(compute, 3, backend, names=names, operations=list(OPERATIONS)).results()
    for name in names:
        for operation, calculate in OPERATIONS.items():
            check_results(outcomes, name, operation, calculate(stacked(name, 3)))


def test_integers_have_bitwise_operations(ranks: Any, backend: str) -> None:
    names = SIGNED + UNSIGNED
    outcomes = ranks(compute, 3, backend, names=names, operations=list(BITWISE)).results()
    for name in names:
        for operation, calculate in BITWISE.items():
            expected = values(name, 0)
            for rank in (1, 2):
                expected = calculate(expected, values(name, rank))
            check_results(outcomes, name, operation, expected.to(wide(name)))


def test_floats_are_averaged_and_so_are_integers_rounded_toward_zero(
    ranks: Any, backend: str
) -> None:
    integers = [*SIGNED, "int16", "uint8"]
    outcomes = ranks(
        compute, 2, backend, names=[*FLOATS, *integers, "uint32"], operations=["AVG"]
    ).results()
    for name in FLOATS:
        check_results(outcomes, name, "AVG", stacked(name, 2).sum(0) / 2)
    if backend == "gloo":
        return
    for name in integers:
        check_results(outcomes, name, "AVG", stacked(name, 2).sum(0).div(2, rounding_mode="trunc"))
    for found in outcomes:
        # torch itself does not divide these.
        assert "avg" in found["uint32 AVG"]


def average_in_all_forms() -> Any:
    """Average integers: strided, asynchronous and scattered.

    Totals are -7 and 7 on two ranks, and -9 and 9 on three.
    """
    mine = (
        torch.tensor([-3, 3])
        - torch.tensor([1, -1]) * (dist.get_rank() == 0)
        + torch.tensor([1, -1]) * (dist.get_rank() == 2)
    )
    pairs = torch.stack([mine, torch.zeros_like(mine)]).t()
    wide = pairs.clone().t().contiguous().t()
    dist.all_reduce(wide[:, 0], dist.ReduceOp.AVG)
    work = dist.all_reduce(started := mine.clone(), dist.ReduceOp.AVG, async_op=True)
    value = work.get_future().wait()[0]
    block = torch.zeros(2, dtype=torch.int64)
    dist.reduce_scatter_tensor(block, mine.repeat(dist.get_world_size()), dist.ReduceOp.AVG)
    return wide[:, 0].tolist(), started.tolist(), value.tolist(), block.tolist()


def test_integers_are_averaged_in_all_forms_of_calls(ranks: Any) -> None:
    # -4 - 3 - 2 and 4 + 3 + 2.
    assert ranks(average_in_all_forms, 3, "ringfold").results() == [([-3, 3],) * 4] * 3
    assert ranks(average_in_all_forms, 2, "ringfold").results() == [([-3, 3],) * 4] * 2


def add_complex_numbers() -> Any:
    x = torch.complex(torch.arange(5.0), torch.arange(5.0) + dist.get_rank())
    total, mean = x.clone(), x.clone()
    dist.all_reduce(total)
    dist.all_reduce(mean, dist.ReduceOp.AVG)
    return total, mean


def test_complex_numbers_are_added_and_averaged(ranks: Any, backend: str) -> None:
    expected = torch.complex(torch.arange(5.0) * 2, torch.arange(5.0) * 2 + 1)
    for total, mean in ranks(add_complex_numbers, 2, backend).results():
        assert torch.equal(total, expected) and torch.equal(mean, expected / 2)


def weigh_before_adding() -> Any:
    found = []
    for dtype in (torch.float32, torch.float64, torch.float16):
        tensor = torch.full((9,), float(dist.get_rank() + 1), dtype=dtype)
        dist.all_reduce(tensor, dist._make_nccl_premul_sum(0.5))
        found.append(tensor)
    return found


def test_sums_are_weighed_by_a_factor(ranks: Any) -> None:
    for found in ranks(weigh_before_adding, 2, "ringfold").results():
        assert all((tensor == 1.5).all() for tensor in found)


def compute_with_what_has_no_sum() -> Any:
    found = []
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        try:
            dist.all_reduce(torch.zeros(3).to(dtype))
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
        assert total == 2 and len(refusals) == 2
        assert all(fitting and "float8" in text for fitting, text in refusals)


def sum_in_both_ways(names: list[str]) -> list[str]:
    """Compare calls that wait, on a shorter path, with asynchronous ones."""
    different = []
    for name in names:
        for shape in ((), (0,), (7,), (3, 5)):
            waited = torch.arange(torch.Size(shape).numel()).reshape(shape).to(getattr(torch, name))
            started = waited.clone()
            striped = torch.stack([waited, waited], dim=-1)[..., 0]
            dist.all_reduce(waited)
            dist.all_reduce(started, async_op=True).wait()
            dist.all_reduce(striped)
            if not (torch.equal(waited, started) and torch.equal(waited, striped)):
                different.append(f"{name} {shape}")
    places, values = torch.tensor([[dist.get_rank(), 3]]), torch.ones(2)
    waited, started = (torch.sparse_coo_tensor(places, values, (5,)) for _ in range(2))
    dist.all_reduce(waited)
    dist.all_reduce(started, async_op=True).wait()
    expected = torch.tensor([1.0, 1, 0, 2, 0])
    if not (torch.equal(waited.to_dense(), expected) and torch.equal(started.to_dense(), expected)):
        different.append("sparse")
    return different


def test_sums_are_the_same_whether_their_caller_waits_or_not(ranks: Any) -> None:
    names = [
        "float64",
        "float32",
        "float16",
        "bfloat16",
        "int8",
        "uint8",
        "int32",
        "int64",
        "complex64",
    ]
    assert ranks(sum_in_both_ways, 2, "ringfold", names=names).results() == [[], []]


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
        for count in (1, COUNT, 100_000):
            x = torch.full((count,), large if dist.get_rank() == 0 else 1, dtype=dtype)
            dist.all_reduce(x)
            sums += [x.min().item() - large, x.max().item() - large]
    return sums


def test_sums_of_16_bits_are_rounded_once_on_one_host(ranks: Any) -> None:
    """docs/guides/from-gloo.md promises this; with gloo, some sums stay at the large number."""
    assert ranks(add_ones_to_large_numbers, 3, "ringfold").results() == [[2.0] * 12] * 3
