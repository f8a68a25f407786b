"""Collectives on device memory at given addresses: private until a framework's binding needs it.

    lane = Lane(communicator, device=0)
    place = [(address, 4 * count)]
    request = DeviceRequest("all_reduce", "float32", count, place, place)
    work = lane.enqueue([request], stream)  # behind the stream's current work; returns at once
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

    Every rank opens the lane at the same position in its order of calls, with the same sizes; the
    lane then has an order of calls of its own. Any thread may call. A slot of staging memory has
    `slot_bytes` bytes, and each of `depth` slices, a power of two, has two slots. A slice has at
    most `slice_bytes` bytes; by default, the cost model decides. `direct` allows devices of one
    host to read the slots of all ranks, if they can. `one_shot` has one kernel do all small
    all-reduces of ranks with a device each (`True`) or none (`False`); by default, it does those
    that should be faster, if a calibration has measured the device.

    After an error nothing waits forever: streams continue, the results of outstanding calls are
    filled with 0xFF bytes (NaN), and every later call raises the error.

    As a context manager, a lane is closed at the end, or aborted on all ranks if an exception
    leaves the block. A lane that is dropped with outstanding calls is aborted, too.
    """

    def __init__(
        self,
        communicator: Communicator,
        device: int = 0,
        *,
        slot_bytes: int | None = None,
        slice_bytes: int | None = None,
        depth: int | None = None,
        direct: bool = True,
        one_shot: bool | None = None,
    ) -> None:
        self._native = _native.Lane.open(
            communicator._native,
            device,
            slot_bytes=slot_bytes,
            slice_bytes=slice_bytes,
            depth=depth,
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
        wait for the host: HIP, and drivers before CUDA 11.7.
        """
        return self._native.waits_on_host

    @property
    def result_stream(self) -> int:
        """The handle of the stream that stores results. Work enqueued on this stream runs after the
        calls made so far; with `waits_on_host`, after the calls joined so far. Such work must not
        wait.
        """
        return self._native.result_stream

    def enqueue(self, requests: Sequence[DeviceRequest], stream: int) -> DeviceWork:
        """Enqueue calls behind the current work of stream handle `stream`, without waiting.

        The collectives of a group travel together, followed by its messages. Four messages at a
        time do not wait for each other; of more, all ranks handle the messages of each pair in the
        same order. All ranks make the same groups, except for messages.
        """
        return self._native.enqueue(list(requests), stream)

    def fault(self) -> RingfoldError | None:
        """The error that ended the lane, if any."""
        return self._native.fault()

    def abort(self, reason: str = "no reason given") -> None:
        """End the lane on all ranks; streams continue."""
        self._native.abort(reason)

    def close(self) -> None:
        """Wait until all calls have completed, also on the device, and free all resources.

        Not collective; may be repeated.
        """
        self._native.close()
        _exit.discard(self)

    def _close_at_exit(self) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<ringfold._lane.Lane, rank {self.rank} of {self.world_size}, device {self.device}>"
