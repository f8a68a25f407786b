"""The handle of an asynchronous call."""

from collections.abc import Callable
from typing import Any

from ringfold import _native


class Work:
    """A call that was started with `async_=True`.

    Until it is done, do not write to its input and do not access its output. Both are kept alive,
    even if the handle is dropped. Calls of one communicator run in the order in which they were
    started.
    """

    def __init__(
        self,
        native: _native.Work | None,
        finish: Callable[[], Any],
        communicator: _native.Communicator,
    ) -> None:
        self._started = native
        self._finish = finish
        # It stays open as long as the handle.
        self._communicator = communicator

    @property
    def _call(self) -> _native.Work:
        """The call, once it is started; calls of a group are started at the end of its block."""
        if self._started is None:
            raise RuntimeError("the call's group is not started; leave the `with` block first")
        return self._started

    def _start(self, native: _native.Work) -> None:
        """Called when the group is started."""
        self._started = native

    def wait(self, timeout: float | None = None) -> Any:
        """Wait until the call is done and return its result, or raise its error.

        After `timeout` seconds raise the builtin `TimeoutError`; the call then continues and can be
        waited for again. (If the call's own deadline passes, `ringfold.Timeout` is raised, and the
        communicator fails.)
        """
        if not self._call.wait(timeout):
            raise TimeoutError(f"the call is not done after {timeout} s; it continues")
        return self._finish()

    def done(self) -> bool:
        """Whether the call has completed, successfully or not."""
        return self._started is not None and self._started.done()

    @property
    def source(self) -> int:
        """The sender, after a successful receive; otherwise a `RuntimeError`."""
        return self._call.source

    def when_done(self, call: Callable[[], object]) -> None:
        """Run `call()` once, when the call has completed, successfully or not.

        The library's thread `ringfold-done` runs callbacks one at a time; if the call has completed
        already, `call()` runs at once in this thread. It may make calls and wait for them and for
        their callbacks. Its exceptions go to `sys.unraisablehook`.
        """
        self._call.when_done(call)

    def result(self) -> Any:
        """The result; waits if necessary."""
        return self.wait()

    def exception(self) -> BaseException | None:
        """The error of the call, or `None`; waits if necessary."""
        try:
            self._call.wait()
        except RuntimeError as error:
            return error
        return None

    def __repr__(self) -> str:
        return f"<ringfold.Work, {'done' if self.done() else 'in progress'}>"
