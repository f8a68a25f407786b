"""The handle of an asynchronous call."""

from collections.abc import Callable
from typing import Any, NamedTuple

from ringfold import _native, arrays
from ringfold.errors import RingfoldError


class Work:
    """A call that was started with `async_=True`.

    Until the call has completed, do not write to its input and do not access its output. Both are
    kept alive, even if the handle is dropped. Calls of one communicator run in the order in which
    they were started.
    """

    def __init__(
        self,
        native: _native.Work | None,
        finish: Callable[[], Any],
        communicator: _native.Communicator,
    ) -> None:
        self._started = native
        self._finish = finish
        # The communicator stays open as long as the handle exists.
        self._communicator = communicator

    @property
    def _call(self) -> _native.Work:
        """The started call; calls of a group are started at the end of its block."""
        if self._started is None:
            raise RuntimeError("the call's group is not started; leave the `with` block first")
        return self._started

    def _start(self, native: _native.Work) -> None:
        """Set the call when its group is started."""
        self._started = native

    def wait(self, timeout: float | None = None) -> Any:
        """Wait until the call has completed and return its result, or raise its error.

        After `timeout` seconds, raises the builtin `TimeoutError`; the call then continues and can
        be waited for again. (If the call's own deadline passes, `RingfoldTimeoutError` is raised,
        and the communicator fails.)
        """
        if not self._call.wait(timeout):
            raise TimeoutError(f"the call is not done after {timeout} s; it continues")
        return self._finish()

    def done(self) -> bool:
        """Whether the call has completed, successfully or not."""
        return self._started is not None and self._started.done()

    @property
    def source(self) -> int:
        """The rank of the sender, after a successful receive; otherwise raises `RuntimeError`."""
        return self._call.source

    def when_done(self, call: Callable[[], object]) -> None:
        """Run `call()` once after this call has completed, successfully or not.

        The library's thread `ringfold-done` runs callbacks one at a time; if the call has already
        completed, `call()` runs at once in the caller's thread. Callbacks may make calls and wait
        for them and for their callbacks. Exceptions of callbacks go to `sys.unraisablehook`.
        """
        self._call.when_done(call)

    def result(self) -> Any:
        """The result of the call; waits if necessary."""
        return self.wait()

    def exception(self) -> BaseException | None:
        """The error of the call, or `None`; waits if necessary."""
        call = self._call
        try:
            call.wait()
        except RingfoldError as error:
            return error
        return None

    def __repr__(self) -> str:
        return f"<ringfold.Work, {'done' if self.done() else 'in progress'}>"


class Collected(NamedTuple):
    """A call of a group that has not been started yet."""

    request: _native.Request
    work: Work
    is_awaited: bool


def result(array: Any, like: Any, receive: Work | _native.Work | None) -> Any:
    """The result of a call that was started; with its source, if it is a receive from any rank."""
    if like is not None:
        array = arrays.restored(like, array)
    return array if receive is None else (array, receive.source)
