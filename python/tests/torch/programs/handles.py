"""Handles of calls in progress, and all ways to wait for them."""

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch._C import Future

from programs.layouts import Wrong

LONG = timedelta(seconds=50)
PATIENCE_S = 50.0
LOOK_S = 0.0005


def waiting(how: str, made: Any, outputs: list[torch.Tensor]) -> Callable[[], None]:
    """Return a function that waits for a handle; a callback is added at once."""
    if made is None:
        return lambda: None
    if how == "callback":
        called: list[Any] = []
        promise = future(made).then(lambda done: called.append(done.value()))
        return lambda: check_callback(promise, called)
    if isinstance(made, Future):
        return lambda: poll(made.done) if how == "poll" else made.wait()
    ways: dict[str, Callable[[], object]] = {
        "limit": lambda: made.wait(LONG),
        "poll": lambda: poll(made.is_completed),
        "future": lambda: future(made).wait(),
        "thread": lambda: wait_in_thread(made),
    }
    wait = ways.get(how, made.wait)

    def waits() -> None:
        wait()
        if not made.is_completed():
            raise Wrong("a call that was waited for is not complete")

    return waits


def future(made: Any) -> Any:
    """Return the future of a handle; some coalesced calls have a future as their handle."""
    return made if isinstance(made, Future) else made.get_future()


def check_callback(promise: Any, called: list[Any]) -> None:
    """Wait for a future's callback."""
    promise.wait()
    if len(called) != 1:
        raise Wrong(f"a callback was called {len(called)} times")


def poll(is_complete: Callable[[], bool]) -> None:
    """Poll until a call is complete, without waiting for it."""
    until = time.monotonic() + PATIENCE_S
    while not is_complete():
        if time.monotonic() > until:
            raise Wrong("a call is never complete")
        time.sleep(LOOK_S)


def wait_in_thread(made: Any) -> None:
    """Wait in another thread, and raise its error here."""
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            made.wait()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]


def within(check: Callable[[], None]) -> None:
    """Repeat a check until it passes; raise its `Wrong` if it still fails after `PATIENCE_S`."""
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            check()
            return
        except Wrong:
            if time.monotonic() > until:
                raise
        time.sleep(LOOK_S)
