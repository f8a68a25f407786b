"""The software driver for tests in Python: called as a program calls CUDA."""

import ctypes
import mmap
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

LIBRARY = Path(__file__).parents[3] / "target/debug/deps/libringfold_softcuda.so"
NON_BLOCKING = 1
AT_LEAST = 0
PORTABLE_AND_MAPPED = 3
REFUSED = 719
"""`CUDA_ERROR_LAUNCH_FAILED`, which nothing handles by itself."""


def library() -> Path:
    """The driver, as the Rust tests built it: cargo puts it beside them."""
    if not LIBRARY.exists():
        pytest.skip("the driver is not built; `cargo test --no-run` does that")
    return LIBRARY


class Program:
    """A program that uses a device: a stream, and memory that is never freed."""

    def __init__(self, device: int = 0) -> None:
        self._driver = ctypes.CDLL(os.environ["RINGFOLD_CUDA_LIBRARY"])
        context, stream = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._context = context
        self.call("cuCtxPushCurrent_v2", context)
        self.call("cuStreamCreateWithPriority", ctypes.byref(stream), NON_BLOCKING, 0)
        assert stream.value is not None
        self.stream = stream.value
        # A word of pinned memory, for `hold` and `let_go`, and how often the stream was held.
        self._holds = 0
        self._page = mmap.mmap(-1, mmap.PAGESIZE)
        # The driver's threads look at it until the process ends.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._page))
        self._word = ctypes.c_uint32.from_buffer(self._page)
        address, word = ctypes.addressof(self._word), ctypes.c_uint64()
        self.call(
            "cuMemHostRegister_v2",
            ctypes.c_void_p(address),
            ctypes.c_size_t(mmap.PAGESIZE),
            PORTABLE_AND_MAPPED,
        )
        self.call("cuMemHostGetDevicePointer_v2", ctypes.byref(word), ctypes.c_void_p(address), 0)
        self._device_word = word

        def wait_for_word(value: int) -> None:
            while self._word.value < value:
                time.sleep(0.001)

        # A driver's thread may run it until the process ends.
        self._wait_for_word = ctypes.CFUNCTYPE(None, ctypes.c_size_t)(wait_for_word)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._wait_for_word))

    def call(self, name: str, *arguments: Any) -> None:
        """Call the driver, which must agree."""
        code = getattr(self._driver, name)(*arguments)
        assert code == 0, f"{name} answers {code}"

    def upload(self, content: np.ndarray) -> int:
        """New memory with this content."""
        address = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(content.nbytes))
        self.call(
            "cuMemcpyHtoD_v2",
            address,
            content.ctypes.data_as(ctypes.c_void_p),
            ctypes.c_size_t(content.nbytes),
        )
        return address.value

    def download(self, address: int, like: np.ndarray) -> np.ndarray:
        """What memory holds when the stream is done."""
        self.call("cuStreamSynchronize", ctypes.c_void_p(self.stream))
        content = np.empty_like(like)
        self.call(
            "cuMemcpyDtoH_v2",
            content.ctypes.data_as(ctypes.c_void_p),
            ctypes.c_uint64(address),
            ctypes.c_size_t(content.nbytes),
        )
        return content

    def fill(self, address: int, byte: int, count: int) -> None:
        """Enqueue a fill of bytes."""
        self.call(
            "cuMemsetD8Async",
            ctypes.c_uint64(address),
            ctypes.c_uint8(byte),
            ctypes.c_size_t(count),
            ctypes.c_void_p(self.stream),
        )

    def hold(self) -> None:
        """Have the stream wait for `let_go`."""
        self._holds += 1
        self.call(
            "cuStreamWaitValue32_v2",
            ctypes.c_void_p(self.stream),
            self._device_word,
            ctypes.c_uint32(self._holds),
            AT_LEAST,
        )

    def occupy(self) -> None:
        """The same by a kernel, where streams have no memory operations."""
        self._holds += 1
        self._driver.softcuda_launch(
            ctypes.c_size_t(self.stream), self._wait_for_word, ctypes.c_size_t(self._holds)
        )

    def let_go(self) -> None:
        """Let the stream go on."""
        self._word.value = self._holds

    def capture(self, status: int) -> None:
        """What the driver says of the stream: 1 while a graph is captured, 0 otherwise."""
        self._driver.softcuda_capture(ctypes.c_void_p(self.stream), status)

    def step(self) -> bool:
        """Run one operation of a stream, in stepped mode; whether there was one."""
        return bool(self._driver.softcuda_step())

    def count(self, what: str) -> int:
        """How many live in this process: `pinned` ranges, `streams`, `events`, and so on."""
        self._driver.softcuda_count.restype = ctypes.c_uint64
        return int(self._driver.softcuda_count(what.encode()))

    def pinned(self) -> int:
        """How many ranges of memory are pinned."""
        return self.count("pinned")

    def refuse(self, name: str, at: int) -> None:
        """Have the driver refuse a call of this name, counted from now."""
        self._driver.softcuda_fail(name.encode(), ctypes.c_uint64(at), REFUSED)

    def enter(self) -> None:
        """Make the device the one of this thread's calls."""
        self.call("cuCtxPushCurrent_v2", self._context)

    def leave(self) -> None:
        """Undo `enter`."""
        self.call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def allocate_and_free(self) -> None:
        """Take some memory, and free it when the device is idle."""
        address = ctypes.c_uint64()
        self.enter()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(mmap.PAGESIZE))
        self.call("cuMemFree_v2", address)
        self.leave()
