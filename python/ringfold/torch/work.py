"""The handle of an asynchronous call, as torch's callers expect it.

C++ code in torch calls only `wait` and `get_future`; Python code calls all methods. The core waits
without the GIL. A future is created only on request, because completing it requires the GIL.

Errors never go into a future by `set_exception`: C++ treats such a future as successful, and
DistributedDataParallel then crashes on its value. A callback that raises makes a future that fails
in C++ and Python alike.
"""

import os
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PythonCallbackWork
from torch.futures import Future

from ringfold import _native
from ringfold.errors import RingfoldError, UnsupportedError
from ringfold.torch.flight_dump import failed
from ringfold.torch.flight_recorder import Record, SumParts

NO_LIMIT = timedelta(0)
"""torch's value for a `wait` without timeout."""


_LOCK = threading.RLock()
"""Held while a future is made for a work that has nothing to finish."""


def _renew_lock() -> None:
    """Replace the lock in a forked child, where a thread that does not exist may hold it."""
    global _LOCK
    _LOCK = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)


class WaitTimeoutError(RuntimeError, TimeoutError):
    """The timeout of `Work.wait` expired. The call continues and can be waited for again."""


class RingfoldWork(dist.Work):
    """One or more started calls of the core, and the work to do when all have completed.

    Thread-safe. The calls' tensors are kept alive until they have completed, even without the
    handle.
    """

    def __init__(
        self,
        calls: Sequence[_native.Work],
        outputs: list[torch.Tensor],
        finish: Callable[[], None] | None = None,
        record: Record | None = None,
        device: torch.device | None = None,
        communicator: _native.Communicator | None = None,
    ) -> None:
        super().__init__()
        # The communicator stays open as long as the handle exists.
        self._communicator = communicator
        self.calls = calls
        self._record = record
        self._outputs = outputs
        self._finish = finish
        # The device of the results, if not the host.
        self._device = device
        # Most works have nothing to finish and no future; a lock for each would cost time.
        self._lock = _LOCK if finish is None else threading.RLock()
        self._future: Future[list[torch.Tensor]] | None = None

    def wait(self, timeout: timedelta = NO_LIMIT) -> bool:
        """Wait until the calls have completed, or raise their error.

        Raises `WaitTimeoutError` after `timeout`, if the timeout is above 0.
        """
        limit_s = timeout.total_seconds() if timeout > NO_LIMIT else None
        try:
            for call in self.calls:
                call.wait(limit_s)
            if self._finish is not None:
                self._settle()
        except Exception as error:
            # A signal handler may raise a `TimeoutError`, too, which ends the calls.
            is_late = type(error) is TimeoutError and limit_s is not None
            if is_late and not all(call.done() for call in self.calls):
                raise WaitTimeoutError(*error.args) from None
            self._note(error)
            raise
        if self._record is not None:
            self._record.complete()
        return True

    def is_completed(self) -> bool:
        """Whether the calls have completed, successfully or not."""
        if not all(call.done() for call in self.calls):
            return False
        if self._finish is not None:
            self.exception()
        return True

    def is_success(self) -> bool:
        """Whether the calls have completed successfully."""
        return self.is_completed() and self.exception() is None

    def exception(self) -> BaseException | None:
        """The error of the calls; `None` if there is none, or the calls have not completed."""
        for call in self.calls:
            if not call.done():
                return None
        try:
            self.wait()
        except Exception as error:
            return error
        return None

    def result(self) -> list[torch.Tensor]:
        """The tensors that the calls fill."""
        return self._outputs

    def synchronize(self) -> None:
        """Do the same as `wait`."""
        self.wait()

    def source_rank(self) -> int:
        """The sender, after a receive from any rank."""
        return self.calls[0].source

    _source_rank = source_rank

    def get_future(self) -> "Future[list[torch.Tensor]]":
        """A future of the tensors that the calls fill; it fails with their error."""
        with self._lock:
            if self._future is None:
                self._future = self._promise()
            return self._future

    def _promise(self) -> "Future[list[torch.Tensor]]":
        done: Future[Any] = Future(devices=[] if self._device is None else [self._device])
        promise = done.then(self._redeem)
        self.when_done(lambda: done.set_result(None))
        return promise

    def when_done(self, call: Callable[[], object]) -> None:
        """Run `call()` once all calls have completed, successfully or not."""
        if len(self.calls) == 1:
            self.calls[0].when_done(call)
            return
        left = len(self.calls)
        counting = threading.Lock()

        def one_is_done() -> None:
            nonlocal left
            with counting:
                left -= 1
                is_last = left == 0
            if is_last:
                call()

        for each in self.calls:
            each.when_done(one_is_done)
        if not self.calls:
            call()

    def _redeem(self, _: Any) -> list[torch.Tensor]:
        self.wait()
        return self._outputs

    def _note(self, error: Exception) -> None:
        if self._record is not None:
            failed(self._record, error)

    def _settle(self) -> None:
        with self._lock:
            if self._finish is not None:
                # A mode of the waiting thread, such as that for fake tensors, must not apply to the
                # results.
                with torch._C._DisableTorchDispatch():
                    try:
                        self._finish()
                    except BaseException as error:
                        # `finish` is not repeated: it may have done a part of its work.
                        kept = error
                        if not isinstance(error, Exception):
                            kept = RingfoldError(f"incomplete results: {error!r}")
                        self._finish = partial(_raise, kept)
                        raise
                self._finish = None


def started_sum(
    work: _native.Work,
    tensor: torch.Tensor,
    communicator: _native.Communicator,
    parts: SumParts | None,
) -> RingfoldWork:
    """The handle of a sum that a `ShortestSum` has started; `parts` unless it has succeeded."""
    record = None if parts is None else Record.of_sum(*parts)
    if record is not None:
        record.works = [work]
        record.trace.recorder.ring.replace(record.id, record)
    return RingfoldWork([work], [tensor], None, record, None, communicator)


def _raise(error: BaseException) -> None:
    raise error


def held(work: dist.Work) -> dist.Work:
    """A C++ handle that keeps `work` alive; otherwise C++ drops the Python part of a handle."""
    return PythonCallbackWork(work.wait)


class CompletedWork(dist.Work):
    """The handle of a call that returned when it had completed: its result is in its tensors."""

    def wait(self, timeout: timedelta = NO_LIMIT) -> bool:
        """Return at once: the call has completed."""
        return True

    def is_completed(self) -> bool:
        """Whether the call has completed: always."""
        return True

    def is_success(self) -> bool:
        """Whether the call succeeded: always, because otherwise it raised."""
        return True

    def exception(self) -> None:
        """The error of the call: none, because otherwise the call raised."""

    def synchronize(self) -> None:
        """Do nothing: the call has completed."""

    def result(self) -> list[torch.Tensor]:
        """Raise `UnsupportedError`: one handle serves all such calls."""
        raise UnsupportedError(
            "the call was made with async_op=False, so its result is in its tensors; use "
            "async_op=True"
        )

    def get_future(self) -> "Future[list[torch.Tensor]]":
        """Raise `UnsupportedError`: one handle serves all such calls."""
        raise UnsupportedError(
            "the call was made with async_op=False, so it has no future; use async_op=True"
        )
