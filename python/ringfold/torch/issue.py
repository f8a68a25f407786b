"""The single path from torch's calls to the core's.

A `Call` collects requests, substitutes for tensors that cannot be used in place, and the result for
torch. `Issuer.issue` executes a call: at once if the caller waits anyway, else started, with a
handle. Calls on device tensors go to the group's lane (`device`), or through the host (`level0`);
all others go to its communicator. Work common to every call (profiler, recorder, coalescing) is
done here.

Invariants: requests are started in the order of the calls, which must be the same on all ranks.
Only a call with `asyncOp` off waits for its result here, and no call of a lane does. A call through
the host always waits until its inputs are on the host.
"""

import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from time import time_ns
from typing import NamedTuple

import torch
import torch.distributed as dist

from torch._C import _len_torch_dispatch_stack
from torch._C._autograd import _profiler_enabled as _is_profiled
from torch._C._distributed_c10d import _allow_inflight_collective_as_graph_input as _is_noticed
from torch._C._distributed_c10d import AllreduceOptions, _register_work
from torch._C._functorch import maybe_current_level as _transform_level

from ringfold import _native
from ringfold._native import DeviceRequest, Request, ShortestSum
from ringfold.errors import InvalidArgumentError, UnsupportedError
from ringfold.torch.device import DRIVER_STREAMS, DeviceHandle, DeviceSide
from ringfold.torch.flight_dump import failed
from ringfold.torch.flight_recorder import MESSAGES, Noted, Record, SumParts, Trace
from ringfold.torch.level0 import Passage, PassageWork
from ringfold.torch.memory import BUCKET_BYTES_MIN
from ringfold.torch.options import NOTHING, SUM, Terms
from ringfold.torch.tensors import Numbers, Side, Staging, is_truncated, mixed, pieces
from ringfold.torch.work import CompletedWork, RingfoldWork, held

Counts = int | list[int] | tuple[list[int], list[int]]

REFUSALS = (InvalidArgumentError, UnsupportedError)
"""The errors of calls that are not started."""
NOWHERE = (0, 0)
"""The memory of a rank without input or output."""


def memory(tensor: torch.Tensor | None) -> tuple[int, int]:
    """Address and size in bytes of a plain tensor."""
    return NOWHERE if tensor is None else (tensor.data_ptr(), tensor.nbytes)


class Call(Staging):
    """One call of torch, as requests to the core.

    A call with a `device` has the requests `on_device` instead of `requests`, and keeps the tensors
    that they use in `held`.
    """

    __slots__ = (
        "held", "name", "noted", "on_device", "outputs", "requests", "terms", "works", "world_size",
    )  # fmt: skip
    on_device: list["DevicePart"]
    held: list[torch.Tensor]

    def __init__(self, name: str, terms: Terms, world_size: int = 1) -> None:
        super().__init__()
        self.world_size = world_size
        """The number of ranks, for calls that reduce."""
        self.name = name
        """The collective's name in `ringfold`."""
        self.terms = terms
        self.requests: list[Request] = []
        self.noted: list[Noted] = []
        """The facts of the requests, for the flight recorder."""
        self.outputs: list[torch.Tensor] = []
        self.works: list[_native.Work] = []
        """The handles of the requests, once they are started."""

    def ask(
        self,
        numbers: Numbers,
        counts: Counts,
        given: Side | None,
        filled: Side | None,
        *,
        root: int | None = 0,
        tag: int = 0,
    ) -> None:
        """Add one or more requests on tensors usable in place; counts are in elements of torch."""
        if self.passage is None:
            self._ask(numbers, counts, given, filled, root, tag)
            return
        # On the host, sides are in one piece.
        assert not isinstance(given, list) and not isinstance(filled, list)
        for step in self.passage.steps(self.name, counts, given, filled):
            self._ask(numbers, *step, root, tag)

    def _ask(
        self,
        numbers: Numbers,
        counts: Counts,
        given: Side | None,
        filled: Side | None,
        root: int | None,
        tag: int,
    ) -> None:
        terms = self.terms
        operation = terms.operation
        if operation == "avg" and given is not None and is_truncated(pieces(given)[0].dtype, "avg"):
            operation = "sum"
            if filled is not None:
                self.divide(filled, self.world_size)
        self.noted.append(noted(given, filled, counts, root, tag))
        if self.device is not None:
            self._ask_device(DevicePart(numbers, counts, operation, given, filled, root))
            return
        self.requests.append(self.request(numbers, counts, operation, given, filled, root, tag))

    def request(
        self,
        numbers: Numbers,
        counts: Counts,
        operation: str,
        given: Side | None,
        filled: Side | None,
        root: int | None,
        tag: int,
    ) -> Request:
        """A request on host memory."""
        # On the host, sides are in one piece.
        assert not isinstance(given, list) and not isinstance(filled, list)
        source = memory(given)
        return Request.raw(
            self.name,
            numbers.name,
            counts if numbers.width == 1 else widened(counts, numbers.width),
            source,
            source if filled is given else memory(filled),
            op=operation,
            factor=self.terms.factor,
            root=root,
            tag=tag,
            timeout=self.terms.timeout_s,
            owner=(given, filled),
        )

    def admit(self, communicator: _native.Communicator) -> None:
        """Raise if any of several requests is refused, before the first one is started."""
        if len(self.requests) > 1:
            for request in self.requests:
                communicator.check(request)

    def stays(self, tensor: torch.Tensor) -> bool:
        """Whether the call uses the tensor's memory on its device."""
        device = tensor.device
        if device == self.device:
            return True
        if self.is_hosted(tensor):
            return False
        if self.device is not None or self.requests:
            raise mixed(device, self.device)
        self.device = device
        self.on_device, self.held = [], []
        return True

    def is_hosted(self, tensor: torch.Tensor) -> bool:
        """Whether torch copies a device tensor through the host, instead of a lane using it.

        Messages go through the host: the first call with device tensors may be a message between
        two ranks, which cannot open a lane, and a lane would execute messages in their order.
        """
        return self.name in MESSAGES or tensor.device.type not in DRIVER_STREAMS

    def _ask_device(self, part: "DevicePart") -> None:
        for tensor in pieces(part.given) + pieces(part.filled):
            if tensor.device != self.device:
                raise mixed(tensor.device, self.device)
            self.held.append(tensor)
        last = self.on_device[-1] if self.on_device else None
        if last is not None and self.name in _VECTORS and last.is_like(part):
            self.on_device[-1] = last.followed_by(part)
        else:
            self.on_device.append(part)

    def device_requests(self) -> list[DeviceRequest]:
        """The requests of a call on device tensors."""
        return [part.request(self.name, self.terms) for part in self.on_device]


_VECTORS = frozenset({"all_reduce", "broadcast", "reduce"})
"""Calls in which several tensors are equivalent to one: a lane takes them as pieces."""


class DevicePart(NamedTuple):
    """A request on device tensors."""

    numbers: Numbers
    counts: Counts
    operation: str
    given: Side | None
    filled: Side | None
    root: int | None

    def is_like(self, other: "DevicePart") -> bool:
        """Whether the two requests can be merged, if their call is one of `_VECTORS`."""
        return (self.numbers, self.operation, self.root) == (
            other.numbers, other.operation, other.root,
        )  # fmt: skip

    def followed_by(self, other: "DevicePart") -> "DevicePart":
        """Both requests merged into one, in a call of `_VECTORS`."""
        assert isinstance(self.counts, int) and isinstance(other.counts, int)
        return self._replace(
            counts=self.counts + other.counts,
            given=pieces(self.given) + pieces(other.given),
            filled=pieces(self.filled) + pieces(other.filled),
        )

    def request(self, name: str, terms: Terms) -> DeviceRequest:
        """This part as a request to a lane."""
        return DeviceRequest(
            name,
            self.numbers.name,
            widened(self.counts, self.numbers.width),
            [memory(piece) for piece in pieces(self.given)],
            [memory(piece) for piece in pieces(self.filled)],
            op=self.operation,
            factor=terms.factor,
            root=self.root,
            timeout=terms.timeout_s,
        )


def widened(counts: Counts, width: int) -> Counts:
    """`counts` in elements of the core, of which an element of torch has `width`."""
    return changed(counts, lambda count: count * width)


def changed(counts: Counts, change: Callable[[int], int]) -> Counts:
    """`counts` with each count changed."""
    if isinstance(counts, int):
        return change(counts)
    if isinstance(counts, tuple):
        return list(map(change, counts[0])), list(map(change, counts[1]))
    return list(map(change, counts))


def noted(
    given: Side | None,
    filled: Side | None,
    counts: Counts,
    root: int | None,
    tag: int,
) -> Noted:
    """The recorded facts of a request, without its tensors."""
    if isinstance(given, list) or isinstance(filled, list):
        kind = (pieces(given) or pieces(filled))[0].dtype
        return (total(given), total(filled), kind, counts, root, tag)
    if given is filled:
        if given is None:
            return (None, None, None, counts, root, tag)
        shape = given.shape
        return (shape, shape, given.dtype, counts, root, tag)
    if given is None:
        assert filled is not None
        return (None, filled.shape, filled.dtype, counts, root, tag)
    return (given.shape, None if filled is None else filled.shape, given.dtype, counts, root, tag)


def total(side: Side | None) -> Sequence[int] | None:
    """The shape of the concatenation of a side's pieces."""
    return None if side is None else [sum(piece.numel() for piece in pieces(side))]


_TORCH = {
    "count_modes": _len_torch_dispatch_stack,
    "is_profiled": _is_profiled,
    "is_noticed": _is_noticed,
    "transform_level": _transform_level,
    "options": AllreduceOptions,
    "sum": SUM,
    "no_time": NOTHING,
}
"""What a `ShortestSum` asks torch."""


class Issuer:
    """Executes the calls of one group, and records them. Thread-safe."""

    def __init__(
        self, communicator: _native.Communicator, side: DeviceSide, trace: Trace
    ) -> None:
        self.communicator = communicator
        self._side = side
        self._trace = trace
        self._done = CompletedWork()
        self._coalesced: list[RingfoldWork | DeviceHandle] | None = None
        # Started host calls whose results are still to be copied or changed, in order.
        self._unsettled: dict[RingfoldWork, None] = {}
        # Calls of level 0 that may have results to enqueue.
        self._passing: weakref.WeakSet[PassageWork] = weakref.WeakSet()
        # Reentrant: a signal handler may shut the group down.
        self._passing_lock = threading.RLock()
        self.shortest = ShortestSum(
            communicator, trace, trace.recorder.ring, trace.counter, self._done, self._unsettled,
            _TORCH, BUCKET_BYTES_MIN,
        )  # fmt: skip
        """The shorter path for sums of one small tensor."""
        self.shortest.is_off = trace.has_frames

    def issue(self, call: Call) -> dist.Work:
        """Execute `call`, or start it."""
        if _is_profiled():
            with torch.autograd.profiler.record_function(f"ringfold:{call.name}"):
                return self._issue(call)
        return self._issue(call)

    def _issue(self, call: Call) -> dist.Work:
        record = self._trace.begin(call)
        try:
            call.admit(self.communicator)
            if call.device is not None:
                work = self._enqueue(call, call.device, record)
                return noticed(work, call) if _is_noticed() else work
            if call.terms.is_async or self._coalesced is not None:
                work = self._start(call, record)
                return noticed(work, call) if _is_noticed() else work
            if call.passage is not None:
                self._pass(call, call.passage, record).wait()
                return self._done
            if len(call.requests) == 1:
                self.communicator.run(call.requests[0])
            else:
                # Grouped as in `_start`: other ranks may start the same call with a handle.
                for work in started(self.communicator, call.requests):
                    work.wait()
            if call.is_needed:
                call.finish()
            if self._unsettled:
                self._settle()
            record.completed_ns = time_ns()
            return self._done
        except BaseException as error:
            fail(record, error)
            raise

    def _start(self, call: Call, record: Record) -> dist.Work:
        if call.passage is not None:
            passed = self._pass(call, call.passage, record)
            with self._passing_lock:
                self._passing.add(passed)
            passed.deliver_when_done()
            if self._coalesced is not None:
                self._coalesced.append(passed)
            return passed
        record.works = call.works = started(self.communicator, call.requests)
        is_needed = call.is_needed
        finish: Callable[[], None] | None = call.finish if is_needed else None
        if self._unsettled and call.name == "barrier":
            finish = self._settle
        work = RingfoldWork(call.works, call.outputs, finish, record, None, self.communicator)
        if is_needed:
            self._unsettled[work] = None
            work.when_done(partial(self._settle_one, work))
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    def _settle(self) -> None:
        """Finish the started calls that have completed, also if nothing waits for their handles."""
        for work in list(self._unsettled):
            if all(call.done() for call in work.calls):
                self._settle_one(work)

    def _settle_one(self, work: RingfoldWork) -> None:
        try:
            work.wait()
        except Exception:
            # The handle reports the error, also one of torch.
            pass
        finally:
            self._unsettled.pop(work, None)

    def _pass(self, call: Call, passage: Passage, record: Record) -> PassageWork:
        """Start a call whose device tensors go through the host."""
        record.works = call.works = passage.start(call.requests, self.communicator.start)
        finish: Callable[[], None] | None = call.finish if call.is_needed else None
        return PassageWork(
            call.works, call.outputs, finish, record, passage, self.communicator
        )

    def deliver(self) -> None:
        """Enqueue the results of all calls through the host, which have ended on the host."""
        self._settle()
        with self._passing_lock:
            passing = list(self._passing)
        for work in passing:
            # The handle reports the error.
            with suppress(Exception):
                work.wait()

    def _enqueue(self, call: Call, device: torch.device, record: Record) -> dist.Work:
        """Enqueue a call on device tensors."""
        held = call.held + call.outputs
        finish = call.finish if call.is_needed else None
        under_way = self._side.enqueue(device, call.device_requests(), finish, held, record)
        if not call.terms.is_async and self._coalesced is None:
            under_way.join(device)
            held.clear()
            return self._done
        handle = DeviceHandle(self._side, [under_way], call.outputs)
        if self._coalesced is not None:
            self._coalesced.append(handle)
        return handle

    def start_coalescing(self) -> None:
        """Begin coalescing: calls are only started, until `end_coalescing`."""
        self._coalesced = []
        self.shortest.is_off = True

    def end_coalescing(self) -> dist.Work:
        """Return one handle for all calls since `start_coalescing`."""
        works, self._coalesced = self._coalesced or [], None
        self.shortest.is_off = self._trace.has_frames
        outputs = [output for work in works for output in work.result()]
        hosted = [work for work in works if isinstance(work, RingfoldWork)]
        enqueued = [work for work in works if isinstance(work, DeviceHandle)]
        if not enqueued:
            return together(hosted, outputs)
        if hosted:
            raise InvalidArgumentError(
                "calls on tensors of the host and of a device were coalesced; coalesce them apart"
            )
        return DeviceHandle(
            self._side, [call for handle in enqueued for call in handle.calls], outputs
        )


def started(
    communicator: _native.Communicator, requests: list[Request]
) -> list[_native.Work]:
    """Start requests, as a group if there are several, so that the tuner knows their number."""
    if len(requests) == 1:
        return [communicator.start(requests[0])]
    calls = [(request, request.handle()) for request in requests]
    communicator.start_group(calls)
    return [work for _, work in calls]


def fail(record: Record, error: BaseException) -> None:
    """Record that a call has failed, or was refused and thus never started."""
    if isinstance(error, REFUSALS):
        record.trace.retract(record)
    else:
        failed(record, error)


def end_sum(parts: SumParts, error: BaseException) -> None:
    """Record the error of a sum that a `ShortestSum` has made."""
    record = Record.of_sum(*parts)
    record.trace.recorder.ring.replace(record.id, record)
    fail(record, error)


def noticed(work: dist.Work, call: Call) -> dist.Work:
    """Register `work` with torch, because compiled programs may wait for its outputs; return it."""
    for output in call.outputs:
        _register_work(output, held(work))
    return work


def together(works: Sequence[RingfoldWork], outputs: list[torch.Tensor]) -> dist.Work:
    """One handle for several host calls."""
    if len(works) == 1:
        return works[0]
    calls = [call for work in works for call in work.calls]

    def finish() -> None:
        for work in works:
            work.wait()

    return RingfoldWork(calls, outputs, finish)
