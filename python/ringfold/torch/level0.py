"""Level 0: tensors of any accelerator, by torch's own streams, events and pinned memory.

Used on accelerators that no lane can serve, because their memory and streams are not those of
CUDA's driver, and for messages and sealed bytes on any accelerator. A call is a host call between
two copies:

    current   ──┬─────────────────────────────────────┬──▶  joined by `wait`
    down        └─ piece 0 ─ piece 1 ─ …              │
    host                └ call 0 ─ call 1 ─ …         │
    up                        └─ piece 0 ─ piece 1 ───┘

The caller waits until its data is on the host, and starts host calls. When a host call completes,
its results are copied up; the thread that is notified or waits enqueues these copies. Elementwise
collectives copy large tensors in pieces, so that both copies and the host work at the same time.

Invariants: no operation of a stream waits for the host, so no stream can block forever. Memory is
kept until it is copied.
"""

import functools
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import torch

from ringfold import _native
from ringfold.errors import RingfoldError
from ringfold.torch.flight_recorder import Record
from ringfold.torch.work import NO_LIMIT, RingfoldWork

PIECES_MAX = 8
"""Maximum number of pieces of a tensor; each piece is a host call."""
PIECE_BYTES_MIN = 1 << 20
"""Minimum size of a piece, in bytes."""
_BY_ELEMENT = frozenset({"all_reduce", "broadcast", "reduce"})
"""Elementwise collectives: a result depends only on the inputs at the same position."""


class Pair(NamedTuple):
    """A device tensor, and pinned memory of its shape."""

    there: torch.Tensor
    here: torch.Tensor


class Sides:
    """The copy streams of a device, and the memory that they use."""

    def __init__(self, device: torch.device) -> None:
        self.down = torch.Stream(device)
        self.up = torch.Stream(device)
        self._kept: deque[tuple[torch.Event, Any]] = deque()
        self._lock = threading.Lock()

    def keep(self, until: torch.Event, memory: Any) -> None:
        """Keep memory until an event of `up` has happened and a later call is made."""
        with self._lock:
            self._kept.append((until, memory))

    def sweep(self) -> None:
        """Release memory that is no longer in use."""
        with self._lock:
            while self._kept and self._kept[0][0].query():
                self._kept.popleft()


@functools.cache
def sides(device: torch.device) -> Sides:
    """The copy streams of a device, shared by all groups: no work enqueued on them waits long."""
    return Sides(device)


class Passage:
    """The copies of a torch call: down before each host call, and up after it.

    Copies are first noted for the next request; `steps` then divides them.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._sides = sides(device)
        # Copies of the next request.
        self._new_down: list[Pair] = []
        self._new_up: list[Pair] = []
        # Copies by request.
        self._down: list[list[Pair]] = []
        self._up: list[list[Pair]] = []
        self._arrived: torch.Event | None = None
        self._lock = threading.Lock()
        begun = torch.accelerator.current_stream(device).record_event()
        self._sides.down.wait_event(begun)
        self._sides.up.wait_event(begun)

    def source(self, tensor: torch.Tensor) -> torch.Tensor:
        """Pinned memory that has the tensor's content when the request starts."""
        here = pinned(tensor.shape, tensor.dtype)
        self._new_down.append(Pair(tensor.detach(), here))
        return here

    def target(self, tensor: torch.Tensor, is_read: bool) -> torch.Tensor:
        """Pinned memory whose content is copied to the tensor after the request."""
        here = self.source(tensor) if is_read else pinned(tensor.shape, tensor.dtype)
        self._new_up.append(Pair(tensor.detach(), here))
        return here

    def joined(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """Pinned memory that has the tensors' concatenated content when the request starts."""
        flat, pairs = together(tensors)
        self._new_down += pairs
        return flat

    def divided(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """Pinned memory whose parts are copied to the tensors after the request."""
        flat, pairs = together(tensors)
        self._new_up += pairs
        return flat

    def steps(
        self, name: str, count: Any, given: torch.Tensor | None, filled: torch.Tensor | None
    ) -> Iterator[tuple[Any, torch.Tensor | None, torch.Tensor | None]]:
        """Count, input and output of the requests for the noted copies: one, or one for each piece.

        The number of requests depends only on values that are the same on all ranks.
        """
        down, up = self._new_down, self._new_up
        self._new_down, self._new_up = [], []
        whole = given if filled is None else filled
        number = 1
        if whole is not None and name in _BY_ELEMENT:
            number = min(PIECES_MAX, max(1, whole.nbytes // PIECE_BYTES_MIN))
        if number == 1 or not all(here is given or here is filled for _, here in down + up):
            self._down.append(down)
            self._up.append(up)
            yield count, given, filled
            return
        self._down += cuts(down, number, is_up=False)
        self._up += cuts(up, number, is_up=True)
        for part, target in zip(cut(given, number), cut(filled, number), strict=True):
            known = target if part is None else part
            # One object if the call works in place.
            yield known.numel(), part, part if filled is given else target

    def bring_now(self) -> None:
        """Copy the noted inputs down at once, for a request that is made of their content."""
        brought = self._copied_down(self._new_down)
        self._new_down = []
        if brought is not None:
            brought.synchronize()

    def start(
        self, requests: Sequence[_native.Request], start: Callable[[_native.Request], _native.Work]
    ) -> list[_native.Work]:
        """Start each request when its inputs are on the host."""
        self._sides.sweep()
        started = []
        brought = [self._copied_down(pairs) for pairs in self._down]
        for request, event in zip(requests, brought, strict=True):
            if event is not None:
                event.synchronize()
            started.append(start(request))
        return started

    def deliver(self, request: int) -> None:
        """Enqueue the copies up after a completed request; may be repeated."""
        with self._lock:
            pairs = self._up[request]
            if not pairs:
                return
            with self._sides.up:
                for there, here in pairs:
                    # Detached by this thread, which may not be in the call's inference mode.
                    there.detach().copy_(here, non_blocking=True)
            if self._arrived is None:
                self._arrived = torch.Event(self.device)
            self._arrived.record(self._sides.up)
            self._sides.keep(self._arrived, pairs)
            self._up[request] = []

    def deliver_all(self) -> None:
        """Enqueue the copies up after all requests."""
        for request in range(len(self._up)):
            self.deliver(request)

    def join(self) -> None:
        """Make this thread's current stream wait for the delivered results."""
        if self._arrived is not None:
            torch.accelerator.current_stream(self.device).wait_event(self._arrived)

    def is_up(self) -> bool:
        """Whether the delivered results have arrived on the device."""
        return self._arrived is None or self._arrived.query()

    def _copied_down(self, pairs: Sequence[Pair]) -> torch.Event | None:
        if not pairs:
            return None
        with self._sides.down:
            for there, here in pairs:
                here.copy_(there, non_blocking=True)
        return self._sides.down.record_event()


class PassageWork(RingfoldWork):
    """The handle of a call through the host: like ProcessGroupNCCL's, `wait` makes the current
    stream wait, but only after the host is done.
    """

    def __init__(
        self,
        calls: Sequence[_native.Work],
        outputs: list[torch.Tensor],
        finish: Callable[[], None] | None,
        record: Record | None,
        passage: Passage,
        communicator: _native.Communicator,
    ) -> None:
        super().__init__(calls, outputs, finish, record, passage.device, communicator)
        self._passage = passage

    def deliver_when_done(self) -> None:
        """Copy results up when the host is done, even if nothing waits."""
        for index, call in enumerate(self.calls):
            call.when_done(functools.partial(self._deliver, index))

    def wait(self, timeout: timedelta = NO_LIMIT) -> bool:
        """Wait until the host is done, and make the current stream wait for the copies up."""
        super().wait(timeout)
        self._passage.deliver_all()
        self._passage.join()
        return True

    def is_completed(self) -> bool:
        """Whether the results have arrived on the device, or the call has failed."""
        return super().is_completed() and (
            self.exception() is not None or self._passage.is_up()
        )

    def _deliver(self, index: int) -> None:
        try:
            if self._finish is None:
                self.calls[index].wait(None)
                self._passage.deliver(index)
            elif index == len(self.calls) - 1:
                self.wait()
        except RingfoldError:
            # The waiting thread gets the error.
            pass


def pinned(shape: Any, dtype: torch.dtype) -> torch.Tensor:
    """Host memory that the device copies from and to without the CPU."""
    return torch.empty(shape, dtype=dtype, device="cpu", pin_memory=True)


def together(tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, list[Pair]]:
    """Pinned memory for all tensors, and each tensor's part of it."""
    sizes = [tensor.numel() for tensor in tensors]
    flat = pinned(sum(sizes), tensors[0].dtype)
    parts = zip(tensors, flat.split(sizes), strict=True)
    return flat, [Pair(tensor.detach(), part.view(tensor.shape)) for tensor, part in parts]


def cut(tensor: torch.Tensor | None, number: int) -> Sequence[Any]:
    """The tensor's elements in `number` parts; there are at least as many elements."""
    return [None] * number if tensor is None else tensor.detach().view(-1).tensor_split(number)


def cuts(pairs: list[Pair], number: int, *, is_up: bool) -> list[list[Pair]]:
    """The copies in `number` parts. A tensor that is not contiguous is copied whole: down before
    the first call, up after the last.
    """
    parts: list[list[Pair]] = [[] for _ in range(number)]
    for pair in pairs:
        if pair.there.is_contiguous():
            for index, part in enumerate(zip(*(cut(each, number) for each in pair), strict=True)):
                parts[index].append(Pair(*part))
        else:
            parts[-1 if is_up else 0].append(pair)
    return parts
