"""Open objects, such as communicators and lanes, and their closing at interpreter exit."""

import atexit
import os
import sys
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import NoReturn, Self

from ringfold import _native, _uncaught
from ringfold.errors import RingfoldError, in_words

GRACE_S = 1.0
"""Time that interpreter exit waits for calls in daemon threads and on devices, in seconds."""


class Open(ABC):
    """A resource that the ranks share until it is closed.

    As a context manager, the resource is closed at the end, or aborted on all ranks if an exception
    leaves the block.
    """

    @abstractmethod
    def abort(self, reason: str) -> None:
        """End the resource on all ranks."""

    @abstractmethod
    def close(self) -> None:
        """Free all resources of this rank."""

    def _finish_calls(self) -> None:
        """Wait for the started calls, and leave their errors to their handles."""

    @abstractmethod
    def _close_at_exit(self) -> None:
        """Close the resource at interpreter exit."""

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


_open: "weakref.WeakSet[Open]" = weakref.WeakSet()


def add(opened: Open) -> None:
    """Register `opened` to be closed at exit."""
    _open.add(opened)
    prepare()


def prepare() -> None:
    """Install the exit hooks of a process that opens a resource."""
    _uncaught.install()
    prepare_child()


def discard(closed: Open) -> None:
    """Unregister `closed`."""
    _open.discard(closed)


def finish_all() -> None:
    """Wait for the started calls of all open resources."""
    for each in list(_open):
        each._finish_calls()


def close_all(error: BaseException | None) -> None:
    """Close all open resources, or abort them with the uncaught exception as the reason."""
    for each in list(_open):
        # The program has already seen this error.
        with suppress(RingfoldError):
            if error is not None:
                each.abort(in_words(error))
            each._close_at_exit()


Finish = Callable[[], None]
Close = Callable[[BaseException | None], None]

_kinds: list[tuple[Finish, Close]] = [(finish_all, close_all)]


def on_exit(finish: Finish, close: Close) -> None:
    """Register `finish`, which waits for started calls at process exit, and `close`, which is then
    called with the uncaught exception, if any.
    """
    _kinds.append((finish, close))


def end() -> None:
    """Close everything after calls have ended and callbacks, which may make calls, have returned.

    Ctrl-C ends the wait. After an uncaught exception, the other ranks are notified at once.
    """
    error = _uncaught.uncaught()
    try:
        if error is None:
            for finish, _ in _kinds:
                finish()
            _native.finish_callbacks()
    except BaseException:
        close_everything(error)
        raise
    close_everything(error)
    # Callbacks of calls that have ended since.
    _native.finish_callbacks()


def close_everything(error: BaseException | None) -> None:
    """Close all open resources, the kind registered last first."""
    for _, close in reversed(_kinds):
        close(error)


def end_child() -> None:
    """Close everything at the end of a child of `multiprocessing`, which handles exceptions itself
    and waits for its other threads later. Unless spawned, the child then runs no `atexit` function
    that was registered before the fork.
    """
    error = sys.exc_info()[1]
    _uncaught.remember(error)
    if error is None:
        join_threads()
    if sys.modules["multiprocessing"].get_start_method() != "spawn":
        end()


def join_threads() -> None:
    """Wait for the program's other non-daemon threads, as interpreter exit does."""
    # Executors' threads wait for work until these functions end them.
    for call in reversed(getattr(threading, "_threading_atexits", [])):
        call()
    own = threading.current_thread()
    while others := [
        thread for thread in threading.enumerate() if thread is not own and not thread.daemon
    ]:
        for thread in others:
            thread.join()


def end_child_of_callback(exiting: SystemExit | None) -> NoReturn:
    """End this process, a child that a callback forked, on the callback's thread.

    Python 3.13 crashes if the interpreter ends on a thread that it did not create. This function
    therefore ends the process as `multiprocessing` ends its children.
    """
    code = None if exiting is None else exiting.code
    if not (code is None or isinstance(code, int)):
        print(code, file=sys.stderr)
        code = 1
    try:
        join_threads()
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    finally:
        os._exit((code or 0) & 0xFF)


def prepare_child() -> None:
    """Register `end_child` in a child of `multiprocessing`."""
    global _child
    util = sys.modules.get("multiprocessing.util")
    if util is None or sys.modules["multiprocessing"].parent_process() is None:
        return
    if _child != os.getpid():
        _child = os.getpid()
        # Not below 0, so that data that threads put into queues meanwhile is still sent.
        util.Finalize(None, end_child, exitpriority=0)


_child = 0
"""Process id of the child that is prepared."""

atexit.register(end)
