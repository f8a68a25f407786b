"""The handle of a call under way."""

from collections.abc import Callable
from typing import Any

from ringfold import _native


class Work:
    """A call that was started with `async_=True`.

    Its arrays are in use until it is done: do not write to the input, do not touch the output. They are kept alive, also
    when the handle is dropped. Calls of one communicator are carried out in the order in which they were started.
    """

    def __init__(self, native: _native.Work | None, finish: Callable[[], Any]) -> None:
        self._started = native
        self._finish = finish

    @property
    def _call(self) -> _native.Work:
        """The call, once it is started: those of a group are at the end of its block."""
        if self._started is None:
            raise RuntimeError("the call's group is not started; leave the `with` block first")
        return self._started

    def _start(self, native: _native.Work) -> None:
        """The group was started."""
        self._started = native

    def wait(self, timeout: float | None = None) -> Any:
        """Wait until the call is done and return its result; raise what went wrong in it.

        After `timeout` seconds raise the builtin `TimeoutError`; the call goes on then and can be waited for again.
        (The call's own deadline, which is the end of the communicator, is `ringfold.Timeout`.)
        """
        if not self._call.wait(timeout):
            raise TimeoutError(f"the call is not done after {timeout} s; it goes on")
        return self._finish()

    def done(self) -> bool:
        """Whether the call is done, well or not."""
        return self._started is not None and self._started.done()

    @property
    def source(self) -> int:
        """The rank that sent, once a receive is done well; `RuntimeError` before, and for whatever is no receive."""
        return self._call.source

    def when_done(self, call: Callable[[], object]) -> None:
        """Have `call()` made once, when the call is done, well or not.

        A thread of the library does it, `ringfold-done`, one call after the other; if the call is done already, it is done
        here and now. It may make calls and wait for them, and for what they have to call. What it raises goes to
        `sys.unraisablehook`.
        """
        self._call.when_done(call)

    def result(self) -> Any:
        """The result, waited for if need be."""
        return self.wait()

    def exception(self) -> BaseException | None:
        """What went wrong in the call, waited for if need be; `None` if nothing did."""
        try:
            self._call.wait()
        except RuntimeError as error:
            return error
        return None

    def __repr__(self) -> str:
        return f"<ringfold.Work, {'done' if self.done() else 'under way'}>"
