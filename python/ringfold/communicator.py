"""The communicator: shapes and outputs in Python, everything else in the core."""

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import get_ident
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self

from ringfold import _native, _uncaught, arrays
from ringfold._native import Buffer, Request
from ringfold.arrays import Output, Shape
from ringfold.errors import InvalidArgument, RingfoldError, in_words
from ringfold.registration import Registration
from ringfold.work import Work


@dataclass(frozen=True)
class PremulSum:
    """The operation made by `premul_sum`."""

    factor: float


def premul_sum(factor: float) -> PremulSum:
    """The sum of every rank's input times that rank's own `factor` (floats only). An `op`."""
    return PremulSum(factor)


Operation = Literal["sum", "prod", "min", "max", "avg", "mean", "band", "bor", "bxor"] | PremulSum
Counts = int | list[int] | tuple[list[int], list[int]]


class Standing(NamedTuple):
    """How far a rank is; the numbers, the same for the same call on all ranks, say who is ahead of whom."""

    finished: int
    """Collectives that are done on this rank."""
    begun: int
    """Collectives that it has begun."""
    call: str
    """What it has been waiting in for a while, and for whom, in words; empty if it waits in nothing."""


class PeerStats(NamedTuple):
    """What a rank knows of a peer's lateness."""

    last: int
    """Calls in which this peer was the last whose first sign this rank waited for."""
    lateness: float
    """By how many seconds it was late in these, together."""
    most: float
    """The most of them, in seconds."""
    waited: float
    """Seconds of all waits that this peer ended, also later in a call."""
    histogram: list[int]
    """These calls by lateness: below 1024 ns (or too short to be timed), below 2, 4, 8, ... times that, and what is above."""


class Stats(NamedTuple):
    """How a rank waited in the collective calls of a communicator."""

    calls: int
    """Collective calls that are done."""
    unawaited: int
    """Those in which this rank was the last: it waited for no peer's first sign."""
    waited: float
    """Seconds in which it could do nothing but wait."""
    peers: list[PeerStats]
    """By rank; this rank's own stays empty."""


class How(NamedTuple):
    """What every call takes besides its arrays."""

    async_: bool
    timeout: float | None
    algorithm: str | None = None


class _Collected(NamedTuple):
    """A call of a group that is not started."""

    request: Request
    work: Work
    is_awaited: bool


class Communicator:
    """A group of ranks that communicate.

    Every rank makes the same calls in the same order, with the same shapes, types and operations. Arrays are NumPy
    arrays, torch tensors in host memory, and whatever else has the buffer protocol or DLPack. A result is a new array of
    the same framework (a NumPy array for what is no array), or `out`, which must be C-contiguous; `out=x` works in place.

    What all calls take: `timeout` in seconds, instead of the communicator's; with `async_=True` they return a `Work` at
    once. The collectives but `sendrecv` take `algorithm` by name, instead of the communicator's or the tuner's choice.
    Waiting holds no GIL; Ctrl-C ends it on all ranks. Errors are those of `ringfold.errors`. Any thread may call; calls
    are carried out in the order in which they came.

    As a context manager it is closed at the end, or aborted on all ranks when an exception leaves the block.
    """

    def __init__(self, native: _native.Communicator) -> None:
        self._native = native
        # What a thread's open group has collected, by the thread's number.
        self._groups: dict[int, list[_Collected]] = {}
        _open.add(self)
        _uncaught.install()

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
    ) -> Any:
        """Every rank gets the reduction of all `x`."""
        source = Buffer(x)
        target = self._output(x, source, source.shape, out)
        return self._call(
            "all_reduce", source.count, source, target, How(async_, timeout, algorithm), op=op
        )

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
        """Every rank gets the root's `x`. On the other ranks `x` gives shape and type; `out=x` overwrites it."""
        source = Buffer(x)
        target = self._output(x, source, source.shape, out)
        given = source if self.rank == root else None
        return self._call(
            "broadcast", source.count, given, target, How(async_, timeout, algorithm), root=root
        )

    def reduce(
        self,
        x: Any,
        root: int = 0,
        op: Operation = "sum",
        *,
        out: Any = None,
        async_: bool = False,
        timeout: float | None = None,
        algorithm: str | None = None,
    ) -> Any:
        """The root gets the reduction of all `x`; the others get `None`, and their `out` is left alone."""
        source = Buffer(x)
        target = self._output(x, source, source.shape, out) if self.rank == root else None
        how = How(async_, timeout, algorithm)
        return self._call("reduce", source.count, source, target, how, op=op, root=root)

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

        With `counts`, the same on all ranks, rank `i` gives `counts[i]` along axis 0 and the results are joined there.
        """
        source = Buffer(x)
        shape, elements = self._gathered(source, counts)
        target = self._output(x, source, shape, out)
        return self._call("all_gather", elements, source, target, How(async_, timeout, algorithm))

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
        """The root gets what `all_gather` gives; the others get `None`, and their `out` is left alone."""
        source = Buffer(x)
        shape, elements = self._gathered(source, counts)
        target = self._output(x, source, shape, out) if self.rank == root else None
        return self._call(
            "gather", elements, source, target, How(async_, timeout, algorithm), root=root
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
    ) -> Any:
        """Rank `i` gets block `i`, along axis 0, of the reduction of all `x`: equal blocks, or `counts[i]` long."""
        source = Buffer(x)
        shape, elements = self._scattered(source, counts)
        target = self._output(x, source, shape, out)
        return self._call(
            "reduce_scatter", elements, source, target, How(async_, timeout, algorithm), op=op
        )

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
        """Rank `i` gets block `i`, along axis 0, of the root's `x`: equal blocks, or `counts[i]` long.

        Ranks other than the root give `out`, which tells them shape and type; their `x` is not looked at.
        """
        how = How(async_, timeout, algorithm)
        if self.rank == root:
            source = Buffer(x)
            shape, elements = self._scattered(source, counts)
            target = self._output(x, source, shape, out)
            return self._call("scatter", elements, source, target, how, root=root)
        if out is None:
            raise InvalidArgument(
                "`scatter` needs `out` on every rank but the root: it tells shape and type"
            )
        buffer = Buffer(out, True)
        elements = (
            buffer.count
            if counts is None
            else self._element_counts(counts, buffer, counts[self.rank])
        )
        return self._call("scatter", elements, None, Output(buffer, lambda: out), how, root=root)

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

        Blocks are equal parts of axis 0, or as long there as this rank's `send_counts` (one for each rank) say; what it
        gets from each rank is in `recv_counts`.
        """
        source = Buffer(x)
        how = How(async_, timeout, algorithm)
        if send_counts is None and recv_counts is None:
            block = arrays.element_count(arrays.divided(source.shape, self.world_size))
            target = self._output(x, source, source.shape, out)
            return self._call("all_to_all", block, source, target, how)
        if send_counts is None or recv_counts is None:
            raise InvalidArgument("`send_counts` and `recv_counts` go together")
        given = self._element_counts(send_counts, source, sum(send_counts))
        self._check_counts(recv_counts)
        row = arrays.element_count(arrays.split_first(source.shape)[1])
        target = self._output(x, source, arrays.resized(source.shape, sum(recv_counts)), out)
        return self._call(
            "all_to_all", (given, [count * row for count in recv_counts]), source, target, how
        )

    def barrier(
        self, *, async_: bool = False, timeout: float | None = None, algorithm: str | None = None
    ) -> Any:
        """Nobody leaves before everybody has entered."""
        return self._call("barrier", 0, None, None, How(async_, timeout, algorithm))

    def send(
        self, x: Any, peer: int, tag: int = 0, *, async_: bool = False, timeout: float | None = None
    ) -> Any:
        """Send `x` to `peer`, which receives as many elements of the same type under the same `tag`.

        Messages go beside the collectives and neither waits for the other. May wait until the peer receives.
        """
        source = Buffer(x)
        return self._call(
            "send", source.count, source, None, How(async_, timeout), root=peer, tag=tag
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
        """Fill `x` with the oldest message that `peer` sent under `tag`, and return it.

        What was sent before under other tags stays available. With `None` as peer any rank may have sent: the result is then
        `x` and that rank, and no rank waits for ever behind others. Another type or count than `x` has is a `Mismatch`.
        """
        target = Output(Buffer(x, True), lambda: x)
        return self._call(
            "recv", target.buffer.count, None, target, How(async_, timeout), root=peer, tag=tag
        )

    def sendrecv(
        self, x: Any, *, out: Any = None, async_: bool = False, timeout: float | None = None
    ) -> Any:
        """Give `x` to the next rank and get what the previous one gives, around the ring."""
        source = Buffer(x)
        target = self._output(x, source, source.shape, out)
        return self._call("sendrecv", source.count, source, target, How(async_, timeout))

    def empty(self, shape: int | Shape, dtype: Any = "float32") -> Any:
        """Make a NumPy array of zeros in registered memory: calls on it reach the peers' arrays of this host directly.

        Every rank calls it, as it calls a collective; shapes may differ. `torch.from_numpy` makes a tensor of it. The memory
        lives as long as the array or a view of it, and goes without regard to the other ranks.
        """
        return arrays.registered(shape, dtype, self._native.alloc)

    def register(self, x: Any) -> Registration:
        """Register the memory of an array that exists, until the registration is closed (see there).

        Every rank calls it, as it calls a collective; shapes may differ. It costs about as much as 6 to 12 calls on the
        array save: memory of `empty` is better where there is a choice.
        """
        return Registration(self._native.register(Buffer(x, True)), x)

    def split(self, color: int | None, key: int = 0) -> "Communicator | None":
        """Make communicators of the ranks with equal `color`, ordered by `key`, then by rank here.

        Every rank calls it; with `None` as color a rank takes part and gets `None`.
        """
        native = self._native.split(color, key)
        return None if native is None else Communicator(native)

    def standing(self, timeout: float = 1.0) -> "list[Standing | None]":
        """How far all ranks are, by rank; `None` for one that does not answer within `timeout` seconds, or has left.

        Not collective, and any thread may ask while others are stuck in a call; no call is disturbed by it.
        """
        return [
            None if rank is None else Standing(*rank) for rank in self._native.standing(timeout)
        ]

    def stats(self) -> Stats:
        """Who was late in the collective calls until now, as this rank saw it: counted always. Not collective.

        One rank's view is a hint, because lateness is passed on. Whoever finds everybody there (`unawaited`) while the
        others wait was the one.
        """
        calls, unawaited, waited, peers = self._native.stats()
        return Stats(calls, unawaited, waited, [PeerStats(*peer) for peer in peers])

    def reset_stats(self) -> None:
        """Have `stats` count from zero again. Not collective."""
        self._native.reset_stats()

    @property
    def weights(self) -> list[int] | None:
        """How much each rank owns of large all-reduces; `None` if all own the same."""
        return self._native.weights

    def set_weights(self, weights: Sequence[int] | None) -> None:
        """Have rank `i` own `weights[i]` parts of their sum in all-reduces above 32 KiB, which then go by weighted `direct`.

        For a rank whose link or core stays slow: it owns less, or nothing (0). Every rank calls this with the same weights
        at the same place in its order of calls; `None` ends it. It does not communicate.
        """
        self._native.set_weights(None if weights is None else list(weights))

    def rebalance(self) -> list[int] | None:
        """Measure how fast each rank sends, receives and adds, and set weights accordingly, which are returned.

        Collective; takes some milliseconds on fast links and up to a few seconds on slow ones. `None`: all ranks own
        the same, because they are alike or because calls with weights were not measured to be faster.
        """
        return self._native.rebalance()

    def abort(self, reason: str = "no reason given") -> None:
        """End this communicator on all ranks: whoever waits in it gets `Aborted` with this rank and `reason`."""
        self._native.abort(reason)

    def close(self) -> None:
        """Wait for this rank's outstanding calls, say goodbye, free everything. Not collective; may be repeated.

        It waits for calls in which other threads are, too, until their deadlines; `abort` ends these at once. In a signal
        handler that runs while this thread is in a call of this communicator it waits for nothing: that call raises `Closed`.
        """
        self._native.close()
        _open.discard(self)

    def _close_at_exit(self) -> None:
        """`close`, for the end of the interpreter: daemon threads, which will never learn how their calls end, get a moment."""
        self._native.close(EXIT_GRACE_S)
        _open.discard(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            self.abort(in_words(error))
        self.close()

    def __repr__(self) -> str:
        return f"<ringfold.Communicator, rank {self.rank} of {self.world_size}>"

    @contextmanager
    def group(self) -> Iterator[None]:
        """Make the calls of a `with` block together.

        The calls that this thread makes in the block return a `Work` and are started at its end, in their order; those
        without `async_=True` are waited for there. The tuner knows how many they are, and gives each fewer channels. Every rank makes the
        same groups. When the block raises, or one of its calls is wrong, none is started.
        """
        thread = get_ident()
        if thread in self._groups:
            raise InvalidArgument("a group within a group; make its calls in the outer one")
        collected = self._groups[thread] = []
        try:
            yield
        finally:
            del self._groups[thread]
        started = self._native.start_group([call.request for call in collected])
        for call, work in zip(collected, started, strict=True):
            call.work._start(work)
        for call in collected:
            if call.is_awaited:
                call.work.wait()

    def _call(
        self,
        collective: str,
        counts: Counts,
        source: Buffer | None,
        target: Output | None,
        how: How,
        *,
        op: Operation = "sum",
        root: int | None = 0,
        tag: int = 0,
    ) -> Any:
        name, factor = ("premul_sum", op.factor) if isinstance(op, PremulSum) else (op, None)
        if name == "premul_sum" and factor is None:
            raise InvalidArgument("`premul_sum` has a factor: give op=ringfold.premul_sum(factor)")
        request = Request(
            collective,
            counts,
            source,
            None if target is None else target.buffer,
            op=name,
            factor=1.0 if factor is None else factor,
            root=root,
            tag=tag,
            algorithm=how.algorithm,
            timeout=how.timeout,
        )
        finish = nothing if target is None else target.finish
        if self._groups and (collected := self._groups.get(get_ident())) is not None:
            pending = Work(None, finish if root is not None else lambda: (finish(), pending.source))
            collected.append(_Collected(request, pending, not how.async_))
            return pending
        if how.async_:
            work = self._native.start(request)
            return Work(work, finish if root is not None else lambda: (finish(), work.source))
        sender = self._native.run(request)
        return finish() if root is not None else (finish(), sender)

    def _output(self, like: Any, source: Buffer, shape: Shape, out: Any) -> Output:
        return (
            arrays.made(like, source, shape)
            if out is None
            else arrays.given(out, source.dtype, shape)
        )

    def _gathered(
        self, source: Buffer, counts: Sequence[int] | None
    ) -> tuple[Shape, int | list[int]]:
        """The shape of all ranks' inputs together, and how many elements each gives."""
        if counts is None:
            return (self.world_size, *source.shape), source.count
        elements = self._element_counts(
            counts, source, counts[self.rank] if len(counts) > self.rank else 0
        )
        return arrays.resized(source.shape, sum(counts)), elements

    def _scattered(
        self, source: Buffer, counts: Sequence[int] | None
    ) -> tuple[Shape, int | list[int]]:
        """The shape of this rank's part of an input, and how many elements each rank gets."""
        if counts is None:
            shape = arrays.divided(source.shape, self.world_size)
            return shape, arrays.element_count(shape)
        elements = self._element_counts(counts, source, sum(counts))
        return arrays.resized(source.shape, counts[self.rank]), elements

    def _element_counts(self, counts: Sequence[int], buffer: Buffer, rows: int) -> list[int]:
        """`counts` along axis 0 in elements, when `buffer` has `rows` there."""
        self._check_counts(counts)
        length, rest = arrays.split_first(buffer.shape)
        if length != rows:
            raise InvalidArgument(
                f"counts {list(counts)} ask for {rows} along axis 0; the array's shape is {buffer.shape}"
            )
        return [count * arrays.element_count(rest) for count in counts]

    def _check_counts(self, counts: Sequence[int]) -> None:
        if len(counts) != self.world_size or min(counts) < 0:
            raise InvalidArgument(
                f"counts {list(counts)}: one for each of {self.world_size} ranks, 0 or more"
            )


EXIT_GRACE_S = 1.0
"""How long the end of the interpreter waits for calls in which daemon threads are."""

_open: "weakref.WeakSet[Communicator]" = weakref.WeakSet()


def nothing() -> None:
    """The result of calls that give this rank nothing."""


def close_all() -> None:
    """The end of the interpreter: an orderly goodbye, or after an uncaught exception an abort that tells the others of it."""
    error = _uncaught.uncaught()
    for communicator in list(_open):
        try:
            if error is not None:
                communicator.abort(in_words(error))
            communicator._close_at_exit()
        except RingfoldError:
            # It is dead already; whoever used it was told.
            pass
