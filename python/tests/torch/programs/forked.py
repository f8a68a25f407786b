"""Forks in threads of a rank: children that use memory, and end."""

import faulthandler
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from io import RawIOBase
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _IllegalWork

from programs.layouts import Wrong
from programs.steps import Fork

CHILD_S = 60
"""The lifetime of a child, in case it hangs."""
TEXT_MAX = 4000
STILL = 5000
"""Elements of memory that only the child writes."""


class Child:
    """A child to be, and the thread that forks and awaits it."""

    def __init__(self, step: Fork, memory: Callable[[], list[torch.Tensor]]) -> None:
        self.step = step
        self._memory = memory
        self._still = torch.arange(STILL)
        self._problem: str | None = None
        self._thread = threading.Thread(target=self._run, name="fork")
        self._thread.start()

    def check(self) -> None:
        """Wait for the child's end; raise `Wrong` if it failed or changed this process' memory."""
        self._thread.join()
        if self._problem:
            raise Wrong(self._problem)
        if not torch.equal(self._still, torch.arange(STILL)):
            raise Wrong("a forked child changed the memory of its parent")

    def _run(self) -> None:
        try:
            time.sleep(self.step.delay_us / 1e6)
            with open(os.memfd_create("what a child said"), "wb+", buffering=0) as said:
                status = (self._fork if self.step.way == "os" else self._start)(said)
                text = os.pread(said.fileno(), TEXT_MAX, 0).decode(errors="replace")
        except Exception as error:
            self._problem = f"a fork raised {error!r}"
            return
        if status != 0:
            self._problem = f"a forked child ended with {status}: {text}"

    def _fork(self, said: RawIOBase) -> int:
        pid = os.fork()
        if pid == 0:
            os._exit(self._be(said))
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def _start(self, said: RawIOBase) -> int | None:
        context: Any = multiprocessing.get_context("fork")
        process = context.Process(target=lambda: sys.exit(self._be(said)))
        process.start()
        process.join()
        found: int | None = process.exitcode
        process.close()
        return found

    def _be(self, said: RawIOBase) -> int:
        """The child; its exit status."""
        try:
            # What it hangs in is said.
            faulthandler.register(signal.SIGALRM, said, all_threads=False, chain=True)
            signal.alarm(CHILD_S)
            self._use()
        except BaseException:
            said.write(traceback.format_exc().encode())
            return 1
        return 0

    def _use(self) -> None:
        """Read and write all memory."""
        for memory in self._memory():
            use(memory)
        if not torch.equal(self._still, torch.arange(STILL)):
            raise Wrong("a forked child sees other memory")
        self._still.fill_(-1)
        if self.step.calls:
            try:
                made = dist.all_reduce(torch.ones(3), async_op=True)
            except Exception as error:
                if type(error).__name__ != "UnsupportedError":
                    raise
            else:
                # A fork within torch's manager of coalesced calls notes the call, for its end.
                if not isinstance(made, _IllegalWork):
                    raise Wrong("a forked child made a call")


def use(memory: torch.Tensor) -> None:
    """Read and write memory: a view that is private to this process, whatever the parent does."""
    memory.sum()
    memory.fill_(77)
    if not bool((memory == 77).all()):
        raise Wrong("a forked child lost what it wrote")


def prepare() -> None:
    """Use all that children use of torch; all ranks call this before the first fork.

    The first use of a function of torch takes locks: of its statics, and of the C library, which
    registers their ends (glibc 2.36 does not renew this lock in children). A child that is forked
    while another thread holds one would wait forever.
    """
    for dtype in (torch.uint8, torch.int64, torch.float32):
        use(torch.zeros(4, dtype=dtype))
    torch.equal(torch.arange(4), torch.ones(4))
    handle = dist.all_reduce(torch.ones(3), async_op=True)
    assert handle
    handle.wait()
