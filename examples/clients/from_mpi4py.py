"""Make the same calls in mpi4py and ringfold, and compare the results.

    mpirun -n 2 python examples/clients/from_mpi4py.py

The calls are the rows of docs/guides/from-mpi4py.md. Both libraries run in the same processes.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from mpi4py import MPI

import ringfold

TAG = 7
Case = tuple[str, Callable[[], Any], Callable[[], Any]]


def filled(shape: Any, call: Callable[[Any], Any]) -> Any:
    """Return what a call writes to an array of this shape."""
    out = np.zeros(shape)
    call(out)
    return out


def filled_on_root(comm: ringfold.Communicator, shape: Any, call: Callable[[Any], Any]) -> Any:
    """Do the same on rank 0; the other ranks pass no array."""
    return filled(shape, call) if comm.rank == 0 else call(None)


def changed(x: Any, call: Callable[[Any], Any]) -> Any:
    """Return the content of a copy of this array after a call."""
    out = x.copy()
    call(out)
    return out


def reductions(mpi: Any, comm: ringfold.Communicator, x: Any) -> Iterator[Case]:
    """Yield calls that reduce."""
    size = comm.world_size
    yield (
        "Allreduce",
        lambda: filled(x.shape, lambda out: mpi.Allreduce(x, out)),
        lambda: comm.all_reduce(x, out=np.empty_like(x)),
    )
    yield (
        "Allreduce in place",
        lambda: changed(x, lambda out: mpi.Allreduce(MPI.IN_PLACE, out, MPI.MAX)),
        lambda: changed(x, lambda out: comm.all_reduce(out, "max", out=out)),
    )
    yield (
        "Reduce",
        lambda: filled_on_root(comm, x.shape, lambda out: mpi.Reduce(x, out, root=0)),
        lambda: comm.reduce(x, root=0),
    )
    counts = [rank + 1 for rank in range(size)]
    rows = np.arange(float(sum(counts))) + comm.rank
    yield (
        "Reduce_scatter",
        lambda: filled(counts[comm.rank], lambda out: mpi.Reduce_scatter(rows, out, counts)),
        lambda: comm.reduce_scatter(rows, counts=counts),
    )
    yield (
        "Reduce_scatter_block",
        lambda: filled(4, lambda out: mpi.Reduce_scatter_block(np.resize(x, 4 * size), out)),
        lambda: comm.reduce_scatter(np.resize(x, 4 * size)),
    )


def moves(mpi: Any, comm: ringfold.Communicator, x: Any) -> Iterator[Case]:
    """Yield calls that move blocks."""
    size, is_root = comm.world_size, comm.rank == 0
    counts = [rank + 1 for rank in range(size)]
    mine, rows = np.full(counts[comm.rank], 1.0 + comm.rank), np.arange(float(sum(counts)))
    yield (
        "Bcast",
        lambda: changed(x, lambda out: mpi.Bcast(out, root=0)),
        lambda: changed(x, lambda out: comm.broadcast(out, root=0, out=out)),
    )
    yield (
        "Allgather",
        lambda: filled((size, *x.shape), lambda out: mpi.Allgather(x, out)),
        lambda: comm.all_gather(x),
    )
    yield (
        "Allgatherv",
        lambda: filled(sum(counts), lambda out: mpi.Allgatherv(mine, [out, counts])),
        lambda: comm.all_gather(mine, counts=counts),
    )
    yield (
        "Gather",
        lambda: filled_on_root(comm, (size, *x.shape), lambda out: mpi.Gather(x, out)),
        lambda: comm.gather(x),
    )
    yield (
        "Scatterv",
        lambda: filled(
            counts[comm.rank], lambda out: mpi.Scatterv([rows, counts] if is_root else None, out)
        ),
        lambda: comm.scatter(rows, counts=counts, out=np.empty(counts[comm.rank])),
    )
    blocks = np.arange(4.0 * size) + 100 * comm.rank
    yield (
        "Alltoall",
        lambda: filled(4 * size, lambda out: mpi.Alltoall(blocks, out)),
        lambda: comm.all_to_all(blocks),
    )
    sends, receives = counts, [counts[comm.rank]] * size
    yield (
        "Alltoallv",
        lambda: filled(sum(receives), lambda out: mpi.Alltoallv([rows, sends], [out, receives])),
        lambda: comm.all_to_all(rows, send_counts=sends, recv_counts=receives),
    )


def messages(mpi: Any, comm: ringfold.Communicator, x: Any) -> Iterator[Case]:
    """Yield messages between two ranks, and asynchronous calls."""
    following, previous = ((comm.rank + step) % comm.world_size for step in (1, -1))

    def ring_of_mpi(out: Any) -> None:
        request = mpi.Isend(x, following, TAG)
        mpi.Recv(out, previous, TAG)
        request.Wait()

    def ring_of_ringfold() -> Any:
        sending = comm.send(x, following, TAG, async_=True)
        received, source = comm.recv(np.empty_like(x), None, TAG)
        sending.wait()
        assert source == previous
        return received

    yield "Send, Recv", lambda: filled(x.shape, ring_of_mpi), ring_of_ringfold
    yield (
        "Sendrecv",
        lambda: filled(x.shape, lambda out: mpi.Sendrecv(x, following, TAG, out, previous, TAG)),
        lambda: comm.sendrecv(x),
    )
    yield (
        "Iallreduce",
        lambda: filled(x.shape, lambda out: mpi.Iallreduce(x, out).Wait()),
        lambda: comm.all_reduce(x, async_=True).wait(),
    )


def split(mpi: Any, comm: ringfold.Communicator, x: Any) -> Iterator[Case]:
    """Yield a call in a communicator for each half of the ranks."""
    color = comm.rank % 2
    half = comm.split(color, -comm.rank)
    assert half is not None
    yield (
        "Split",
        lambda: filled(x.shape, lambda out: mpi.Split(color, -comm.rank).Allreduce(x, out)),
        lambda: half.all_reduce(x),
    )


def objects(mpi: Any, comm: ringfold.Communicator, x: Any) -> Iterator[Case]:
    """Yield collectives of Python objects, here lists of different lengths."""
    own = [comm.rank] * (comm.rank + 1)

    def flat(lists: Any) -> Any:
        return None if lists is None else sum(lists, [])

    yield ("bcast", lambda: mpi.bcast(own), lambda: comm.broadcast_object(own))
    yield (
        "allgather",
        lambda: flat(mpi.allgather(own)),
        lambda: flat(comm.all_gather_object(own)),
    )
    yield ("gather", lambda: flat(mpi.gather(own)), lambda: flat(comm.gather_object(own)))


def main() -> None:
    mpi = MPI.COMM_WORLD
    with ringfold.init() as comm:
        assert (comm.rank, comm.world_size) == (mpi.Get_rank(), mpi.Get_size())
        x = np.arange(12.0).reshape(3, 4) * (comm.rank + 1)
        compared = 0
        for group in (reductions, moves, messages, objects, split):
            for name, of_mpi, of_ringfold in group(mpi, comm, x):
                expected, found = of_mpi(), of_ringfold()
                assert (expected is None) == (found is None), name
                if expected is not None:
                    assert np.array_equal(np.ravel(expected), np.ravel(found)), name
                compared += 1
        comm.barrier()
        if comm.rank == 0:
            print(f"ringfold, {comm.world_size} ranks: {compared} calls as mpi4py")


if __name__ == "__main__":
    main()
