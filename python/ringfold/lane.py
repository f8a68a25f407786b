"""Collectives on device memory that is named by address: what bindings of frameworks build on.

    lane = Lane(communicator, device=0)
    place = [(address, 4 * count)]
    request = DeviceRequest("all_reduce", "float32", count, place, place)
    work = lane.enqueue([request], stream)  # behind what the stream holds now; returns at once
    work.join(stream)                       # later work of the stream sees the result

Addresses and streams are the driver's numbers. The caller keeps the memory allocated until
`work.done()`.
"""

from collections.abc import Sequence

from ringfold import _exit, _native
from ringfold._native import DeviceRequest, DeviceWork
from ringfold.communicator import Communicator
from ringfold.errors import RingfoldError

__all__ = ["DeviceRequest", "DeviceWork", "Lane"]


class Lane(_exit.Open):
    """The device side of a communicator: collectives on memory of one device of this process.

    Every rank makes it at the same place of its order of calls, and with the same sizes; it has its
    own order of calls then. Any thread may call. A slot of staging memory has `slot_bytes` bytes,
    and there are two for each of `depth` slices, a power of two. `reducer` says what combines the
    elements of an all-reduce: `"host"`, the CPUs, `"device"`, or `"auto"`: for each size what
    should be faster, unless `RINGFOLD_DEVICE_REDUCER` says something else. `direct` says whether
    devices of one host read the slots of all ranks, where they can, and `one_shot` whether one
    kernel may do a small all-reduce, where devices may combine and that should be faster.

    After an error nothing waits for ever: streams go on, the results of calls under way are bytes
    of ones (not a number), and every later call raises the error.

    As a context manager, a lane is closed at the end, or aborted on all ranks if an exception
    leaves the block. If it is dropped while calls are under way, it is aborted, too.
    """

    def __init__(
        self,
        communicator: Communicator,
        device: int = 0,
        *,
        slot_bytes: int | None = None,
        depth: int | None = None,
        reducer: str = "auto",
        direct: bool = True,
        one_shot: bool = True,
    ) -> None:
        self._native = _native.Lane.open(
            communicator._native,
            device,
            slot_bytes=slot_bytes,
            depth=depth,
            reducer=reducer,
            direct=direct,
            one_shot=one_shot,
        )
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
    def device(self) -> int:
        """The ordinal of the device."""
        return self._native.device

    @property
    def waits_on_host(self) -> bool:
        """Whether `DeviceWork.join` blocks until the host has done its part, because streams cannot
        wait for it: HIP, and drivers before CUDA 11.7.
        """
        return self._native.waits_on_host

    @property
    def result_stream(self) -> int:
        """The handle of the stream that stores results: what is enqueued there comes after the
        calls made so far, with `waits_on_host` after those that were joined. Nothing that is
        enqueued there may wait.
        """
        return self._native.result_stream

    def enqueue(self, requests: Sequence[DeviceRequest], stream: int) -> DeviceWork:
        """Enqueue calls behind what the stream with handle `stream` holds now, without waiting.

        Collectives that are made together travel together, and messages behind them: four of these
        at a time do not wait for each other, and more are taken up by pairs, in the same order on
        all ranks. All ranks make the same groups, except for messages.
        """
        return self._native.enqueue(list(requests), stream)

    def fault(self) -> RingfoldError | None:
        """The error that has ended the lane, if one has."""
        return self._native.fault()

    def abort(self, reason: str = "no reason given") -> None:
        """End the lane on all ranks; streams go on."""
        self._native.abort(reason)

    def close(self) -> None:
        """Wait until all calls are done, also on the device, and free all resources.

        Not collective; may be repeated.
        """
        self._native.close()
        _exit.discard(self)

    def _close_at_exit(self) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<ringfold.lane.Lane, rank {self.rank} of {self.world_size}, device {self.device}>"
