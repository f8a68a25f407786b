"""The communicator: shapes and outputs in Python, everything else in the core."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod
from threading import get_ident
from typing import Any, SupportsIndex

from ringfold import _exit, _native, arrays, operation
from ringfold._native import Buffer, Request
from ringfold.arrays import Output, Shape
from ringfold.errors import InvalidArgumentError
from ringfold.objects import ObjectCollectives
from ringfold.operation import Operation, PremulSum
from ringfold.registration import Registration
from ringfold.stats import PeerStats, Standing, Stats

Counts = int | list[int] | tuple[list[int], list[int]]


class Communicator(_native.Calls, _exit.Open, ObjectCollectives):
    """A group of ranks that communicate.

    Every rank makes the same calls in the same order, with the same shapes, types and operations.
    Arrays are NumPy arrays, torch tensors in host memory, and other objects that support the buffer
    protocol or DLPack. A result is a new array of the same framework (a NumPy array if the input is
    not an array), or `out`, which must be C-contiguous; `out=x` works in place.

    All calls accept `timeout` in seconds, instead of the communicator's. With `async_=True` they
    return a `Work` at once. All collectives except `sendrecv` accept `algorithm` by name, instead
    of the communicator's or the tuner's choice; reductions accept `reproducible`, the same on all
    ranks (docs/guides/reproducible.md). The GIL is released while a call waits; Ctrl-C ends
    the wait on all ranks. Errors are those of `ringfold.errors`. Any thread may call; calls run in
    the order in which they were made.

    As a context manager, a communicator is closed at the end, or aborted on all ranks if an
    exception leaves the block.
    """

    _all_reduce: Any

    def __init__(self, native: _native.Communicator) -> None:
        _exit.add(self)

    @property
    def rank(self) -> int:
        """This process' rank."""
        return self._native.rank

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return self._native.world_size

    @property
    def local_rank(self) -> int:
        """This rank's number among the ranks of its host."""
        return self._native.local_rank

    @property
    def local_size(self) -> int:
        """The number of ranks on this host."""
        return self._native.local_size

    @property
    def hosts(self) -> int:
        """The number of hosts."""
        return self._native.hosts

    def all_reduce(
        self,
        x: Any,
        op: Operation = "sum",
        *,
        out: Any = None,
        async_: bool = False,
        timeout: float | None = None,
        algorithm: str | None = None,
        reproducible: bool = False,
    ) -> Any:
        """Return a new array, the reduction of all `x`; `x` stays unchanged unless `out=x`.

        torch.distributed's `all_reduce` and mpi4py's with `IN_PLACE` store the result in `x`.
        """
        source = Buffer(x)
        target = arrays.output(x, source, source.shape, out)
        return self._call(
            "all_reduce", source.count, source, target, async_, timeout, algorithm, op=op,
            reproducible=reproducible,
        )  # fmt: skip

    def broadcast(
        self,
        x: Any,
        root: int = 0,
        *,
        out: Any = None,
        async_: bool = False,
        timeout: float | None = None,
        algorithm: str | None = None,
    ) -> Any:
        """Every rank gets the root's `x`; on other ranks, `x` determines shape and type."""
        others = timeout, algorithm
        if (made := self._usual("broadcast", x, out, async_, others, root)) is not None:
            return made
        source = Buffer(x)
        target = arrays.output(x, source, source.shape, out)
        given = source if self.rank == root else None
        return self._call(
            "broadcast", source.count, given, target, async_, timeout, algorithm, root=root
        )

    def reduce(
        self,
        x: Any,
        *root_and_op: SupportsIndex | Operation,
        root: SupportsIndex | None = None,
        op: Operation | None = None,
        out: Any = None,
        async_: bool = False,
        timeout: float | None = None,
        algorithm: str | None = None,
        reproducible: bool = False,
    ) -> Any:
        """The root gets the reduction of all `x`; others get `None` and keep `out` unchanged.

        `root` (default 0) and `op` (default "sum") are keywords, or follow `x` in either order.
        """
        root, op = operation.root_and_op(root_and_op, root, op)
        source = Buffer(x)
        target = arrays.output(x, source, source.shape, out) if self.rank == root else None
        return self._call(
            "reduce", source.count, source, target, async_, timeout, algorithm, op=op, root=root,
            reproducible=reproducible,
        )  # fmt: skip

    def all_gather(
        self,
        x: Any,
        *,
        counts: Sequence[int] | None = None,
        out: Any = None,
        async_: bool = False,
        timeout: float | None = None,
        algorithm: str | None = None,
    ) -> Any:
        """Every rank gets all `x` in rank order: shape `(world_size, *x.shape)`.

        With `counts`, the same list on all ranks, rank `i` has `counts[i]` rows along axis 0, and
        the result is their concatenation.
        """
        others = timeout, algorithm, counts
        if (made := self._usual("all_gather", x, out, async_, others)) is not None:
            return made
        source = Buffer(x)
        shape, elements = arrays.gathered(source, counts, self.rank, self.world_size)
        target = arrays.output(x, source, shape, out)
        return self._call("all_gather", elements, source, target, async_, timeout, algorithm)

    def gather(
        self,
        x: Any,
        root: int = 0,
        *,
        counts: Sequence[int] | None = None,
        out: Any = None,
        async_: bool = False,
        timeout: float | None = None,
        algorithm: str | None = None,
    ) -> Any:
        """The root gets the result of `all_gather`; others get `None` and keep `out` unchanged."""
        source = Buffer(x)
        shape, elements = arrays.gathered(source, counts, self.rank, self.world_size)
        target = arrays.output(x, source, shape, out) if self.rank == root else None
        return self._call(
            "gather", elements, source, target, async_, timeout, algorithm, root=root
        )

    def reduce_scatter(
        self,
        x: Any,
        op: Operation = "sum",
        *,
        counts: Sequence[int] | None = None,
        out: Any = None,
        async_: bool = False,
        timeout: float | None = None,
        algorithm: str | None = None,
        reproducible: bool = False,
    ) -> Any:
        """Rank `i` gets block `i` of the reduction of all `x`.

        Blocks are equal parts of axis 0, or have `counts[i]` rows.
        """
        others = timeout, algorithm, counts, reproducible
        if (made := self._usual("reduce_scatter", x, out, async_, others, op=op)) is not None:
            return made
        source = Buffer(x)
        shape, elements = arrays.scattered(source, counts, self.rank, self.world_size)
        target = arrays.output(x, source, shape, out)
        return self._call(
            "reduce_scatter", elements, source, target, async_, timeout, algorithm, op=op,
            reproducible=reproducible,
        )  # fmt: skip

    def scatter(
        self,
        x: Any = None,
        root: int = 0,
        *,
        counts: Sequence[int] | None = None,
        out: Any = None,
        async_: bool = False,
        timeout: float | None = None,
        algorithm: str | None = None,
    ) -> Any:
        """Rank `i` gets block `i` of the root's `x`.

        Blocks are equal parts of axis 0, or have `counts[i]` rows. Ranks other than the root pass
        `out`, which determines shape and type; their `x` is ignored.
        """
        if self.rank == root:
            source = Buffer(x)
            shape, elements = arrays.scattered(source, counts, self.rank, self.world_size)
            target = arrays.output(x, source, shape, out)
            return self._call(
                "scatter", elements, source, target, async_, timeout, algorithm, root=root
            )
        if out is None:
            raise InvalidArgumentError(
                "`scatter` needs `out` on every rank except the root: it determines shape and type"
            )
        buffer = Buffer(out, True)
        elements = (
            buffer.count
            if counts is None
            else arrays.element_counts(counts, buffer, counts[self.rank], self.world_size)
        )
        target = buffer, out, None
        return self._call("scatter", elements, None, target, async_, timeout, algorithm, root=root)

    def all_to_all(
        self,
        x: Any,
        *,
        send_counts: Sequence[int] | None = None,
        recv_counts: Sequence[int] | None = None,
        out: Any = None,
        async_: bool = False,
        timeout: float | None = None,
        algorithm: str | None = None,
    ) -> Any:
        """Block `j` of rank `i`'s `x` becomes block `i` of rank `j`'s result.

        Blocks are equal parts of axis 0, or have this rank's `send_counts` rows (one entry per
        rank); `recv_counts` has the number of rows that this rank receives from each rank.
        """
        others = timeout, algorithm, send_counts, recv_counts
        if (made := self._usual("all_to_all", x, out, async_, others)) is not None:
            return made
        source = Buffer(x)
        if send_counts is None and recv_counts is None:
            block = prod(arrays.divided(source.shape, self.world_size))
            target = arrays.output(x, source, source.shape, out)
            return self._call("all_to_all", block, source, target, async_, timeout, algorithm)
        if send_counts is None or recv_counts is None:
            raise InvalidArgumentError("pass both `send_counts` and `recv_counts`, or neither")
        given = arrays.element_counts(send_counts, source, sum(send_counts), self.world_size)
        arrays.check_counts(recv_counts, self.world_size)
        row = prod(arrays.split_first(source.shape)[1])
        target = arrays.output(x, source, arrays.resized(source.shape, sum(recv_counts)), out)
        elements = given, [count * row for count in recv_counts]
        return self._call("all_to_all", elements, source, target, async_, timeout, algorithm)

    def barrier(
        self, *, async_: bool = False, timeout: float | None = None, algorithm: str | None = None
    ) -> Any:
        """Block until all ranks have called `barrier`."""
        return self._call("barrier", 0, None, None, async_, timeout, algorithm)

    def send(
        self, x: Any, peer: int, tag: int = 0, *, async_: bool = False, timeout: float | None = None
    ) -> Any:
        """Send `x` to `peer`.

        The peer receives as many elements of the same type under the same `tag`. Messages run
        alongside collectives and neither waits for the other. May block until the peer receives. A
        message to this rank itself is kept until received: at most 256 MiB, together with messages
        kept from other ranks.
        """
        if (made := self._usual("send", x, None, async_, (timeout,), peer, tag)) is not None:
            return made if async_ else None
        source = Buffer(x)
        return self._call(
            "send", source.count, source, None, async_, timeout, None, root=peer, tag=tag
        )

    def recv(
        self,
        x: Any,
        peer: int | None,
        tag: int = 0,
        *,
        async_: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """Fill `x` with the oldest message that `peer` sent under `tag`, and return `x`.

        Earlier messages under other tags remain available. With `None` as peer, any rank may be the
        sender, including this one: the result is then `x` and the sender's rank, and no sender is
        starved. Raises `MismatchError` if type or count differ from `x`.
        """
        others = timeout, peer is None
        if (made := self._usual("recv", x, None, async_, others, peer, tag)) is not None:
            return made
        target = (Buffer(x, True), x, None)
        return self._call(
            "recv", target[0].count, None, target, async_, timeout, None, root=peer, tag=tag
        )

    def sendrecv(
        self, x: Any, *, out: Any = None, async_: bool = False, timeout: float | None = None
    ) -> Any:
        """Send `x` to the next rank of the ring and return the data from the previous rank."""
        source = Buffer(x)
        target = arrays.output(x, source, source.shape, out)
        return self._call("sendrecv", source.count, source, target, async_, timeout, None)

    def empty(self, shape: int | Shape, dtype: Any = "float32") -> Any:
        """Return a NumPy array of zeros in registered memory.

        Peers on this host access the array directly. A collective call; shapes may differ between
        ranks. `torch.from_numpy` converts the array to a tensor. The memory lives as long as the
        array or a view of it; freeing the memory does not involve the other ranks.
        """
        return arrays.registered(shape, dtype, self._native.alloc)

    def register(self, x: Any) -> Registration:
        """Register the memory of an existing array until the returned `Registration` is closed.

        A collective call; shapes may differ between ranks. Registering costs about as much as 6 to
        12 calls on the array save: if possible, use memory of `empty` instead.
        """
        return Registration(self._native.register(Buffer(x, True)), x)

    def split(self, color: int | None, key: int = 0) -> "Communicator | None":
        """Split into one communicator per `color`, with ranks ordered by `key`, then by current
        rank.

        A collective call; a rank that passes `None` as color takes part and gets `None`.
        """
        native = self._native.split(color, key)
        return None if native is None else Communicator(native)

    def standing(self, timeout: float = 1.0) -> "list[Standing | None]":
        """The progress of all ranks, by rank.

        An entry is `None` if the rank does not answer within `timeout` seconds, or has left. Not
        collective. Any thread may call `standing` while others are stuck in a call; no call is
        disturbed.
        """
        return [
            None if rank is None else Standing(*rank) for rank in self._native.standing(timeout)
        ]

    def stats(self) -> Stats:
        """Statistics of late ranks in the collective calls so far, as seen by this rank.

        Always counted. Not collective. One rank's view is a hint, because lateness propagates. The
        late rank is the one that finds all others waiting (`arrived_last`) while they wait for it.
        """
        calls, arrived_last, waited, peers = self._native.stats()
        return Stats(calls, arrived_last, waited, [PeerStats(*peer) for peer in peers])

    def reset_stats(self) -> None:
        """Reset the counters of `stats`. Not collective."""
        self._native.reset_stats()

    @property
    def weights(self) -> list[int] | None:
        """Each rank's share of large all-reduces; `None` if all are equal."""
        return self._native.weights

    def set_weights(self, weights: Sequence[int] | None) -> None:
        """Set the ranks' shares of large all-reduces: rank `i` owns `weights[i]` parts.

        All-reduces above 32 KiB then use weighted `direct`. If a rank's link or core stays slow, a
        smaller weight lets that rank own less, or nothing (0). Every rank calls this with the same
        weights at the same position in its order of calls; `None` resets them. The call does not
        communicate.
        """
        self._native.set_weights(None if weights is None else list(weights))

    def rebalance(self) -> list[int] | None:
        """Measure each rank's speed of sending, receiving and adding; set weights and return them.

        Collective; takes some milliseconds on fast links and up to a few seconds on slow ones.
        `None` means equal shares, because the ranks are equally fast or because weights were not
        measured to help.
        """
        return self._native.rebalance()

    def abort(self, reason: str = "no reason given") -> None:
        """End this communicator on all ranks: waiting calls raise `AbortedError` with `reason`."""
        self._native.abort(reason)

    def close(self) -> None:
        """Wait for this rank's outstanding calls, say goodbye, and free all resources.

        Not collective; may be repeated. Also waits for calls in other threads, until their
        deadlines; `abort` ends these calls at once. In a signal handler that interrupts a call of
        this communicator, `close` does not wait: the interrupted call raises `ClosedError`.
        """
        self._native.close()
        _exit.discard(self)

    def _finish_calls(self) -> None:
        self._native.finish()

    def _close_at_exit(self) -> None:
        """Close with a short grace period: daemon threads are not resumed at exit."""
        self._native.close(_exit.GRACE_S)
        _exit.discard(self)

    def __repr__(self) -> str:
        return f"<ringfold.Communicator, rank {self.rank} of {self.world_size}>"

    def _is_grouping(self) -> bool:
        return get_ident() in self._groups

    @contextmanager
    def group(self) -> Iterator[None]:
        """Group the calls of a `with` block.

        Within the block, calls of this thread return a `Work`. The end of the block starts them in
        order and waits for those without `async_=True`. The tuner knows the number of calls in the
        group, and chooses fewer channels for each. Every rank must make the same groups. If the
        block raises, or one of its calls is invalid, no call is started.
        """
        thread = get_ident()
        if thread in self._groups:
            raise InvalidArgumentError("nested group; make its calls in the outer group")
        collected = self._groups[thread] = []
        try:
            yield
        finally:
            del self._groups[thread]
        self._native.start_group([(request, work) for request, work, _ in collected])
        for _, work, is_awaited in collected:
            if is_awaited:
                work.wait()

    def _call(
        self,
        collective: str,
        counts: Counts,
        source: Buffer | None,
        target: Output | None,
        async_: bool,
        timeout: float | None,
        algorithm: str | None,
        *,
        op: Operation = "sum",
        root: int | None = 0,
        tag: int = 0,
        reproducible: bool = False,
    ) -> Any:
        name, factor = ("premul_sum", op.factor) if isinstance(op, PremulSum) else (op, None)
        if name == "premul_sum" and factor is None:
            raise InvalidArgumentError(
                "`premul_sum` needs a factor: pass op=ringfold.premul_sum(factor)"
            )
        request = Request(
            collective, counts, source, None if target is None else target[0], op=name,
            factor=1.0 if factor is None else factor, root=root, tag=tag, algorithm=algorithm,
            timeout=timeout, reproducible=reproducible,
        )  # fmt: skip
        array, like = (None, None) if target is None else target[1:]
        collected = self._groups.get(get_ident())
        if collected is None and not async_:
            return self._native.run(request, array, like)
        work = request.handle(self._native, array, like)
        if collected is None:
            self._native.start(request, work)
        else:
            collected.append((request, work, not async_))
        return work


# The base class makes the calls on usual arrays, and leaves all others to the method above.
Communicator._all_reduce = vars(Communicator)["all_reduce"]
delattr(Communicator, "all_reduce")
