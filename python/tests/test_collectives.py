"""Compare every collective with NumPy, between real processes."""

from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ringfold

SHAPES: list[tuple[int, ...]] = [(), (0,), (1,), (7,), (3, 5), (4099,)]
FP8 = ["float8_e4m3fn", "float8_e5m2"]
SUMMED = ["float32", "float64", "int8", "int32", "uint64", "float16", "bfloat16"]
MOVED = [*SUMMED, "bool", *FP8]


def dtype_of(name: str) -> np.dtype[Any]:
    """Return the type with this name, from NumPy or ml_dtypes."""
    return np.dtype(getattr(ml_dtypes, name, None) or name)


def values(rank: int, shape: tuple[int, ...], dtype: str) -> np.ndarray[Any, Any]:
    """Return small integers that differ between ranks; their sums are exact in every type."""
    count = int(np.prod(shape))
    return ((np.arange(count) * 3 + rank * 5) % 7).reshape(shape).astype(dtype_of(dtype))


def all_values(ranks: int, shape: tuple[int, ...], dtype: str) -> list[np.ndarray[Any, Any]]:
    return [values(rank, shape, dtype) for rank in range(ranks)]


def same(result: Any, expected: np.ndarray[Any, Any]) -> None:
    """Check that two arrays have the same bits, shape and type."""
    assert isinstance(result, np.ndarray)
    assert (result.shape, result.dtype) == (expected.shape, expected.dtype)
    assert result.tobytes() == expected.tobytes(), f"{result} is not {expected}"


def each_way(
    call: Callable[..., Any],
    x: np.ndarray[Any, Any],
    expected: np.ndarray[Any, Any],
    in_place: bool = True,
) -> None:
    """Check all forms of `call`: new array, `out`, in place, asynchronous; input unchanged."""
    before = x.tobytes()
    same(call(x), expected)
    same(call(x, async_=True).wait(), expected)
    out = np.empty_like(expected)
    assert call(x, out=out) is out
    same(out, expected)
    assert x.tobytes() == before
    if in_place:
        own = x.copy()
        assert call(own, out=own) is own
        same(own, expected)


def cases(dtypes: list[str]) -> Iterator[tuple[tuple[int, ...], str]]:
    for dtype in dtypes:
        for shape in SHAPES:
            yield shape, dtype


def reductions(comm: ringfold.Communicator) -> None:
    for shape, dtype in cases(SUMMED):
        everyone = all_values(comm.world_size, shape, dtype)
        x = everyone[comm.rank]
        stacked = np.stack(everyone).astype("float64")
        operations: list[Any] = [
            ("sum", stacked.sum(0)),
            ("max", stacked.max(0)),
            ("min", stacked.min(0)),
        ]
        if dtype in ("float32", "float64"):
            operations.append((ringfold.premul_sum(0.5), stacked.sum(0) / 2))
        for op, exact in operations:
            expected = exact.astype(x.dtype)
            each_way(lambda y, **k: comm.all_reduce(y, op, **k), x, expected)
            for root in {0, comm.world_size - 1}:
                for result in (comm.reduce(x, root, op), comm.reduce(x, op, root=root)):
                    if comm.rank == root:
                        same(result, expected)
                    else:
                        assert result is None


def whole_number_operations(comm: ringfold.Communicator) -> None:
    everyone = all_values(comm.world_size, (129,), "uint32")
    operations: list[tuple[ringfold.Operation, Any]] = [
        ("prod", np.multiply),
        ("band", np.bitwise_and),
        ("bor", np.bitwise_or),
        ("bxor", np.bitwise_xor),
    ]
    for op, function in operations:
        each_way(
            lambda y, **k: comm.all_reduce(y, op, **k),
            everyone[comm.rank],
            function.reduce(everyone, dtype="uint32"),
        )
    everyone = all_values(comm.world_size, (129,), "bool")
    each_way(
        lambda y, **k: comm.all_reduce(y, "max", **k),
        everyone[comm.rank],
        np.logical_or.reduce(everyone),
    )
    mean = np.stack(all_values(comm.world_size, (50,), "float64")).sum(0) * (1 / comm.world_size)
    each_way(
        lambda y, **k: comm.all_reduce(y, "avg", **k), values(comm.rank, (50,), "float64"), mean
    )


def movements(comm: ringfold.Communicator) -> None:
    n, rank = comm.world_size, comm.rank
    for shape, dtype in cases(MOVED):
        everyone = all_values(n, shape, dtype)
        x, last = everyone[rank], n - 1
        each_way(lambda y, **k: comm.broadcast(y, last, **k), x, everyone[last])
        each_way(comm.all_gather, x, np.stack(everyone), in_place=False)
        gathered = comm.gather(x, last)
        if rank == last:
            same(gathered, np.stack(everyone))
        else:
            assert gathered is None
        each_way(comm.sendrecv, x, everyone[rank - 1], in_place=False)
        whole = np.stack(everyone)
        out = np.empty(shape, x.dtype)
        result = (
            comm.scatter(whole, 0, out=out.reshape(1, *shape))
            if rank == 0
            else comm.scatter(root=0, out=out)
        )
        same(result.reshape(shape), x)
        # Rank i sends different data to each rank j.
        blocks = [
            np.stack(all_values(n, shape, dtype)[::-1]) + values(r, (), dtype) for r in range(n)
        ]
        each_way(
            comm.all_to_all,
            blocks[rank],
            np.stack([blocks[r][rank] for r in range(n)]),
            in_place=False,
        )
        if n > 1:
            if rank == 0:
                comm.send(x, 1, tag=5)
            if rank == 1:
                same(comm.recv(np.empty(shape, x.dtype), 0, tag=5), everyone[0])
    comm.barrier()


def scattered_sums(comm: ringfold.Communicator) -> None:
    n = comm.world_size
    for dtype in SUMMED:
        for rows in (0, 1, 3, 501):
            everyone = all_values(n, (n * rows, 2), dtype)
            total = np.stack(everyone).astype("float64").sum(0).astype(everyone[0].dtype)
            mine = total[comm.rank * rows : (comm.rank + 1) * rows]
            each_way(comm.reduce_scatter, everyone[comm.rank], mine, in_place=False)


def uneven_counts(comm: ringfold.Communicator) -> None:
    n, rank = comm.world_size, comm.rank
    counts = [(3 * r + 2) % 5 for r in range(n)]
    starts = np.cumsum([0, *counts])
    everyone = [values(r, (counts[r], 3), "float32") for r in range(n)]
    joined = np.concatenate(everyone)
    same(comm.all_gather(everyone[rank], counts=counts), joined)
    gathered = comm.gather(everyone[rank], n - 1, counts=counts)
    assert gathered is None if rank < n - 1 else np.array_equal(gathered, joined)
    vectors = all_values(n, (sum(counts), 3), "float32")
    total = np.stack(vectors).sum(0)
    same(comm.reduce_scatter(vectors[rank], counts=counts), total[starts[rank] : starts[rank + 1]])
    out = np.empty((counts[rank], 3), "float32")
    same(
        comm.scatter(vectors[0], 0, counts=counts, out=out),
        vectors[0][starts[rank] : starts[rank + 1]],
    )
    matrix = [[(i + 2 * j) % 4 for j in range(n)] for i in range(n)]
    given = [np.full((sum(matrix[i]), 2), i, "int32") for i in range(n)]
    got = [np.full((matrix[i][rank], 2), i, "int32") for i in range(n)]
    received = comm.all_to_all(
        given[rank], send_counts=matrix[rank], recv_counts=[matrix[i][rank] for i in range(n)]
    )
    same(received, np.concatenate(got))


def scattered_inputs(comm: ringfold.Communicator) -> None:
    base = np.arange(60.0).reshape(6, 10) + comm.rank
    exact = np.stack([np.arange(60.0).reshape(6, 10) + r for r in range(comm.world_size)]).sum(0)
    for cut in (np.s_[::2], np.s_[:, 3:7], np.s_[::-1, ::-1]):
        same(comm.all_reduce(base[cut]), np.ascontiguousarray(exact[cut]))
    same(comm.all_reduce(base.T), np.ascontiguousarray(exact.T))
    part = np.zeros((6, 10))[:, 3:7]
    for bad in (part, np.zeros((6, 4), "float32"), np.zeros((6, 3))):
        with pytest.raises(ringfold.InvalidArgumentError):
            comm.all_reduce(base[:, 3:7], out=bad)
    comm.barrier()


def parts(comm: ringfold.Communicator) -> Any:
    part = comm.split(comm.rank % 2, key=-comm.rank)
    assert part is not None
    with part:
        members = part.all_gather(np.array([comm.rank])).ravel().tolist()
    alone = comm.split(7 if comm.rank == 0 else None)
    total = comm.all_reduce(np.array([1])).item()
    return members, None if alone is None else alone.world_size, total


def everything(comm: ringfold.Communicator) -> None:
    # One job runs all functions, because starting Python takes longer than the calls.
    for function in (
        reductions,
        whole_number_operations,
        movements,
        scattered_sums,
        uneven_counts,
        scattered_inputs,
    ):
        print(function.__name__, flush=True)
        function(comm)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_results_are_those_of_numpy(jobs: Any, ranks: int, transport: str) -> None:
    jobs(everything, ranks, {"transport": transport}).results()


def test_split_orders_by_key_and_leaves_out_who_has_no_color(jobs: Any) -> None:
    results = jobs(parts, 4).results()
    assert [members for members, _, _ in results] == [[2, 0], [3, 1], [2, 0], [3, 1]]
    assert [size for _, size, _ in results] == [1, None, None, None]
    assert [total for _, _, total in results] == [4] * 4


def reduce_fp8(comm: ringfold.Communicator) -> list[list[float]]:
    """Reduce 1, 2 and 3, of which all partial results are exact."""
    operations: list[ringfold.Operation] = ["sum", "prod", "min", "max", "avg"]
    operations.append(ringfold.premul_sum(0.5))
    return [
        [float(comm.all_reduce(x, operation)[-1]) for operation in operations]
        for x in (np.full(5, comm.rank + 1).astype(dtype_of(name)) for name in FP8)
    ]


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_both_fp8_types_are_reduced(jobs: Any, transport: str) -> None:
    found = jobs(reduce_fp8, 3, {"transport": transport}).results()
    assert found == [[[6.0, 6.0, 1.0, 3.0, 2.0, 3.0]] * 2] * 3
