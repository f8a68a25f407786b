"""Collective calls as data: drawn at random, changed in one field, made, and checked exactly."""

import functools
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from harness import Wrong

import ringfold

ROOTED = ("broadcast", "reduce", "gather", "scatter")
REDUCING = ("all_reduce", "reduce", "reduce_scatter")
LISTED = ("all_gather", "gather", "scatter", "reduce_scatter")
COLLECTIVES = (
    "all_reduce",
    "broadcast",
    "reduce",
    "all_gather",
    "gather",
    "reduce_scatter",
    "scatter",
    "all_to_all",
    "sendrecv",
)
DTYPES = ("int8", "uint8", "int32", "int64", "float16", "float32", "float64")
OPERATIONS = {"sum": np.add, "min": np.minimum, "max": np.maximum, "prod": np.multiply}
# Types with exact products, for four ranks and for more: integers wrap around.
PRODUCT_DTYPES = ("int32", "int64", "float32", "float64")
WRAPPING_DTYPES = ("int32", "int64")
# Sizes around cache lines, pages and slices.
COUNTS = (0, 1, 3, 16, 17, 1000, 1024, 5000, 65536, 200000)
# Values range from 1 to this. Sums of four ranks fit int8, sums of any number of ranks are exact in
# float16, and products of four are exact in float32. A prime, so that no size is a multiple of it.
PERIOD = 31
_LONGEST = 4 * COUNTS[-1] + PERIOD
_VALUES = np.arange(_LONGEST) % PERIOD + 1
_TILES = {dtype: _VALUES.astype(dtype) for dtype in DTYPES}

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Call:
    """One call, as all ranks make it."""

    collective: str
    dtype: str
    counts: tuple[int, ...]
    """Number of elements in each rank's block; all equal unless `uneven`.

    Calls without blocks have `counts[0]` elements.
    """
    op: str = "sum"
    root: int = 0
    salt: int = 0
    """Distinguishes the values of different calls."""
    uneven: bool = False
    """Whether the counts are passed as a list."""
    matrix: tuple[tuple[int, ...], ...] = ()
    """Number of elements from the row's rank to the column's, for an uneven `all_to_all`."""
    algorithm: str | None = None

    def __str__(self) -> str:
        counts: Any = (
            list(self.counts) if self.uneven else list(map(list, self.matrix)) or self.counts[0]
        )
        what = f"{self.collective} of {counts} {self.dtype}"
        what += f" {self.op}" if self.collective in REDUCING else ""
        what += f" root {self.root}" if self.collective in ROOTED else ""
        return what + (f" by {self.algorithm}" if self.algorithm else "")

    def offsets(self) -> list[int]:
        """Return the offset of each rank's block."""
        return [sum(self.counts[:rank]) for rank in range(len(self.counts))]

    def input(self, rank: int) -> Array:
        """Return a rank's input."""
        if self.collective == "all_to_all":
            return np.concatenate([self._block(rank, peer) for peer in range(len(self.counts))])
        length = self.counts[0]
        if self.collective in ("all_gather", "gather"):
            length = self.counts[rank]
        elif self.collective in ("reduce_scatter", "scatter"):
            length = sum(self.counts)
        return self._values(7 * rank, length)

    def _values(self, seed: int, length: int) -> Array:
        begin = (seed + self.salt) % PERIOD
        return _TILES[self.dtype][begin : begin + length]

    def _block(self, rank: int, peer: int) -> Array:
        """Return a rank's data for another rank in an `all_to_all`, at any position."""
        return self._values(7 * rank + 3 * peer, self.sent(rank)[peer])

    def sent(self, rank: int) -> tuple[int, ...]:
        """Return the numbers of elements that a rank sends to each rank in an `all_to_all`."""
        return self.matrix[rank] if self.matrix else self.counts

    def received(self, rank: int) -> list[int]:
        """Return the numbers of elements that a rank receives from each rank in an `all_to_all`."""
        return [self.sent(peer)[rank] for peer in range(len(self.counts))]

    def due(self, rank: int) -> Array | None:
        """Return a rank's expected result, from the definition; `None` if it has none."""
        ranks = range(len(self.counts))
        block = slice(self.offsets()[rank], self.offsets()[rank] + self.counts[rank])
        match self.collective:
            case "all_reduce":
                return self._reduced()
            case "reduce":
                return self._reduced() if rank == self.root else None
            case "reduce_scatter":
                return self._reduced()[block]
            case "broadcast":
                return self.input(self.root)
            case "scatter":
                return self.input(self.root)[block]
            case "all_gather" | "gather":
                if self.collective == "gather" and rank != self.root:
                    return None
                return np.concatenate([self.input(peer) for peer in ranks])
            case "all_to_all":
                return np.concatenate([self._block(peer, rank) for peer in ranks])
            case "sendrecv":
                return self.input((rank - 1) % len(ranks))
        raise ValueError(self.collective)

    def _reduced(self) -> Array:
        inputs: list[Array] = [self.input(peer) for peer in range(len(self.counts))]
        return functools.reduce(OPERATIONS[self.op], inputs)

    def make(
        self, comm: ringfold.Communicator, asynchronous: bool = False, in_place: Array | None = None
    ) -> Any:
        """Make the call, and return its result or its `Work`.

        With `in_place`, that array is both input and output.
        """
        rank = comm.rank
        x = self.input(rank) if in_place is None else in_place
        how: dict[str, Any] = {"async_": asynchronous, "out": in_place}
        if self.collective != "sendrecv":
            how["algorithm"] = self.algorithm
        if self.collective in ROOTED:
            how["root"] = self.root
        if self.collective in REDUCING:
            how["op"] = self.op
        if self.collective in LISTED and self.uneven:
            how["counts"] = self.counts
        if self.collective == "scatter" and rank != self.root:
            how["out"] = np.zeros(self.counts[rank], self.dtype)
        if self.collective == "all_to_all" and self.matrix:
            how["send_counts"], how["recv_counts"] = self.sent(rank), self.received(rank)
        return getattr(comm, self.collective)(x, **how)

    def check(self, rank: int, result: Array | None) -> None:
        """Raise `Wrong` unless a rank's result is exactly the expected one."""
        due = self.due(rank)
        if (result is None) != (due is None):
            raise Wrong(f"{self}: rank {rank} got {result} instead of {due}")
        if result is None or due is None:
            return
        flat = result.reshape(-1)
        if flat.dtype != due.dtype or flat.shape != due.shape:
            raise Wrong(
                f"{self}: rank {rank} got {flat.shape} of {flat.dtype} instead of {due.shape}"
            )
        if flat.tobytes() != due.tobytes():
            at = int(np.flatnonzero(flat != due)[0])
            raise Wrong(
                f"{self}: rank {rank} has {flat[at]} instead of {due[at]} at {at} of {len(due)}"
            )


def drawn(
    random_: random.Random,
    ranks: int,
    collectives: Sequence[str] = COLLECTIVES,
    most: int = COUNTS[-1],
) -> Call:
    """Draw any call of `ranks` ranks, with at most `most` elements per rank."""
    collective = random_.choice(collectives)
    op = random_.choice(list(OPERATIONS))
    exact = PRODUCT_DTYPES if ranks <= 4 else WRAPPING_DTYPES
    dtype = random_.choice(exact if op == "prod" else DTYPES)
    count = random_.choice([count for count in COUNTS if count <= most])
    counts, uneven = (count,) * ranks, False
    matrix: tuple[tuple[int, ...], ...] = ()
    if random_.random() < 0.4:
        if collective in LISTED:
            uneven, counts = True, uneven_list(random_, ranks, count)
        elif collective == "all_to_all":
            matrix = tuple(uneven_list(random_, ranks, count) for _ in range(ranks))
    root, salt = random_.randrange(ranks), random_.randrange(PERIOD)
    return Call(collective, dtype, counts, op, root, salt, uneven, matrix)


def uneven_list(random_: random.Random, ranks: int, count: int) -> tuple[int, ...]:
    """Return a count for each rank, between 0 and `count`."""
    return tuple(random_.choice((0, count, random_.randint(0, count))) for _ in range(ranks))
