"""Calls on device tensors, by the lane of their group.

A call is enqueued behind the current stream, and returns. `async_op=False` makes this stream wait
for the result at once; otherwise `wait` makes the then current stream wait. The host waits in
neither case. A future is completed when it is requested, under the lane's result stream, so that
its values are ordered behind the result; callbacks run at once, and the work that they enqueue runs
when the result is ready.

Invariants: the tensors of a call stay allocated until the device has completed the call, even
without the handle; a later call of the group releases them. No stream is recorded with the
allocator for that. The driver is queried only if streams cannot wait for the host, or results are
copied. Each group has one lane, to one device, opened by its first call with device tensors, which
all ranks make.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.futures import Future

from ringfold import _native
from ringfold.errors import ClosedError, InvalidArgumentError, RingfoldError, UnsupportedError
from ringfold.torch.flight_dump import failed
from ringfold.torch.flight_recorder import Record, Trace
from ringfold.torch.work import NO_LIMIT, WaitTimeoutError


class DriverStreams(NamedTuple):
    """The streams of a device type whose memory and streams are those of CUDA's driver. Device
    indices are the driver's ordinals.
    """

    current: Callable[[int], int]
    """Function that returns the handle of a device's current stream."""
    external: Callable[[int, int], Any]
    """Function that returns a context in which a device's stream with a handle is current."""


def _current_of_cuda(index: int) -> int:
    handle: int = torch._C._cuda_getCurrentRawStream(index)
    return handle


def _external_of_cuda(handle: int, index: int) -> Any:
    return torch.cuda.stream(torch.cuda.ExternalStream(handle, torch.device("cuda", index)))


DRIVER_STREAMS: dict[str, DriverStreams] = (
    {} if torch.version.hip else {"cuda": DriverStreams(_current_of_cuda, _external_of_cuda)}
)
"""The device types that lanes serve, and their streams."""


class UnderWay(NamedTuple):
    """A call that the device may not have completed yet."""

    work: _native.DeviceWork
    after: torch.Event | None
    """Event after which the caller's tensors have the results, unless `work` implies that."""
    held: list[torch.Tensor]
    record: Record

    @property
    def is_done(self) -> bool:
        """Whether the device has completed the call."""
        return self.work.done() and (self.after is None or self.after.query())

    def join(self, device: torch.device) -> None:
        """Make the current stream wait for the results."""
        self.work.join(current(device))
        if self.after is not None:
            self.after.wait()


class DeviceSide:
    """A group's lane, opened on first use, and its outstanding calls. Thread-safe."""

    def __init__(
        self,
        communicator: _native.Communicator,
        trace: Trace,
        check: Callable[[torch.device], None],
    ) -> None:
        self._communicator = communicator
        self._trace = trace
        self._check = check
        """Function that raises for a device that another backend of the group serves."""
        self._lock = threading.Lock()
        self._under_way: deque[UnderWay] = deque()
        self._is_closed = False
        self.device: torch.device | None = None
        """The lane's device, once there is a lane."""
        self.lane: _native.Lane | None = None

    def connect(self, device: torch.device) -> _native.Lane:
        """The lane to `device`; the first call opens it, on all ranks at the same position in their
        order of calls.
        """
        if device == self.device and self.lane is not None:
            return self.lane
        with self._lock:
            if self._is_closed:
                raise ClosedError("the process group is closed")
            if self.lane is None:
                self._check(device)
                if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
                    raise UnsupportedError(
                        "the group's first call with CUDA tensors while a graph is captured: make "
                        "it outside of the graph"
                    )
                self.lane = _native.Lane.open(self._communicator, device.index)
                self.device = device
                self._trace.lane = self.lane
        if device != self.device:
            raise InvalidArgumentError(
                f"a tensor on {device} in a group whose calls are on {self.device}; set the "
                "process' device before tensors are made, or make a group for each device with "
                "`new_group`"
            )
        return self.lane

    def enqueue(
        self,
        device: torch.device,
        requests: Sequence[_native.DeviceRequest],
        finish: Callable[[], None] | None,
        held: list[torch.Tensor],
        record: Record,
    ) -> UnderWay:
        """Enqueue requests one after the other behind the current stream, and `finish` behind
        their results. `held` are the tensors to keep.
        """
        lane = self.connect(device)
        self._sweep()
        stream = current(device)
        for request in requests:
            work = lane.enqueue([request], stream)
        after = None
        if finish is not None:
            with self.results([work]):
                finish()
                after = torch.Event(device)
                after.record()
        call = UnderWay(work, after, held, record)
        record.works = [work]
        with self._lock:
            self._under_way.append(call)
        return call

    def results(self, works: list[_native.DeviceWork]) -> Any:
        """A context in which the lane's result stream is the current one, behind `works`."""
        assert self.lane is not None and self.device is not None
        if self.lane.waits_on_host:
            for work in works:
                work.join(self.lane.result_stream)
        streams = DRIVER_STREAMS[self.device.type]
        return streams.external(self.lane.result_stream, self.device.index)

    def synchronize(self) -> None:
        """Wait until the current stream of the device is idle, if the group has a lane."""
        if self.device is not None:
            torch.accelerator.current_stream(self.device).synchronize()

    def abort(self, reason: str) -> None:
        """End the lane on all ranks; streams continue."""
        with self._lock:
            self._is_closed = True
        if self.lane is not None:
            self.lane.abort(reason)

    def close(self, grace_s: float | None = None) -> None:
        """Wait for the outstanding calls, at most `grace_s` if given, and free the lane."""
        with self._lock:
            self._is_closed = True
            last = self._under_way[-1] if self._under_way else None
        if self.lane is None:
            return
        if grace_s is not None and last is not None and not has_ended(last, grace_s):
            self.lane.abort(f"process exit: a call had not completed after {grace_s} s")
        self.lane.close()
        self._sweep()

    def _sweep(self) -> None:
        """Release the tensors of calls that the device has completed."""
        done = []
        with self._lock:
            while self._under_way and self._under_way[0].is_done:
                done.append(self._under_way.popleft())
        for call in done:
            call.record.settle()


def has_ended(call: UnderWay, limit_s: float) -> bool:
    """Whether a call ends within `limit_s`, successfully or not."""
    try:
        return call.work.wait(limit_s)
    except RingfoldError:
        return True


def current(device: torch.device) -> int:
    """The handle of the calling thread's current stream."""
    return DRIVER_STREAMS[device.type].current(device.index)


class DeviceHandle(dist.Work):
    """The handle of enqueued calls. The host waits only in methods documented to wait on it."""

    def __init__(self, side: DeviceSide, calls: Sequence[UnderWay], outputs: list[torch.Tensor]):
        super().__init__()
        assert side.device is not None
        self._side = side
        self._device = side.device
        self._stream = current(self._device)
        self.calls = calls
        self._outputs = outputs
        self._future: Future[list[torch.Tensor]] | None = None

    def wait(self, timeout: timedelta = NO_LIMIT) -> bool:
        """Make the current stream wait for the result. With a timeout above 0, the host waits, too,
        and `WaitTimeoutError` is raised if the timeout expires.
        """
        try:
            for call in self.calls:
                call.join(self._device)
            if timeout > NO_LIMIT:
                self._wait_on_host(timeout.total_seconds())
        except RingfoldError as error:
            for call in self.calls:
                failed(call.record, error)
            raise
        if current(self._device) == self._stream:
            # The allocator reuses memory in the order of this stream, which now waits for the
            # calls.
            for call in self.calls:
                call.held.clear()
        return True

    def _wait_on_host(self, limit_s: float) -> None:
        for call in self.calls:
            if not call.work.wait(limit_s):
                raise WaitTimeoutError(f"the call is not done after {limit_s} s; it continues")
            if call.after is not None:
                call.after.synchronize()

    def synchronize(self) -> None:
        """Do the same as `wait`."""
        self.wait()

    def is_completed(self) -> bool:
        """Whether the device has completed the calls, or the lane has failed."""
        return all(call.is_done for call in self.calls)

    def is_success(self) -> bool:
        """Whether the device has completed the calls successfully."""
        return self.is_completed() and self.exception() is None

    def exception(self) -> BaseException | None:
        """The error that ended the lane, if the calls had not completed before."""
        if not self.is_completed():
            return None
        try:
            for call in self.calls:
                call.work.wait()
        except RingfoldError as error:
            return error
        return None

    def result(self) -> list[torch.Tensor]:
        """The tensors that the calls fill."""
        return self._outputs

    def get_future(self) -> "Future[list[torch.Tensor]]":
        """A future of the tensors that the calls fill. The future is completed at once; waiting for
        it makes the current stream wait.
        """
        if self._future is None:
            self._future = self._promise()
        return self._future

    def _promise(self) -> "Future[list[torch.Tensor]]":
        error = self._side.lane.fault() if self._side.lane is not None else None
        if error is not None:
            return failure(error)
        promise: Future[list[torch.Tensor]] = Future(devices=[self._device])
        with self._side.results([call.work for call in self.calls]):
            promise.set_result(self._outputs)
        return promise


def failure(error: RingfoldError) -> "Future[list[torch.Tensor]]":
    """A future that fails, in C++ and Python alike."""
    begun: Future[Any] = Future()

    def fail(_: Any) -> list[torch.Tensor]:
        raise error

    promise = begun.then(fail)
    begun.set_result(None)
    return promise
