"""The device `soft`: a test device for torch over the software driver.

Streams, events and memory are the driver's. Every access to device memory is an operation of a
stream, which runs late. A missing wait therefore shows as wrong numbers: memory is NaN until it is
written. The host cannot access device memory. See `operators.cpp`.

`build` compiles the device, and `load` makes it torch's accelerator for the rest of the process.
"""

import contextlib
import ctypes
import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

import ringfold.torch
from ringfold.torch.device import DRIVER_STREAMS, DriverStreams

HERE = Path(__file__).parent
FOLDER = Path(__file__).parents[4] / "target" / "softtorch"
BUILD_S = 900.0
LIBRARY = "SOFTTORCH_LIBRARY"
"""Name of the variable with the path of the built library."""
LEVEL_0 = "SOFTTORCH_LEVEL0"
"""Name of the variable that makes `soft` a device without a lane."""


class CannotBuild(Exception):
    """The machine has no compiler, or no headers of torch."""


@functools.cache
def build() -> Path:
    """Return the library for this release of torch; compile it first if necessary."""
    sources = sorted([*HERE.glob("*.cpp"), *HERE.glob("*.h")])
    content = b"".join(source.read_bytes() for source in sources) + torch.__version__.encode()
    built = FOLDER / f"{hashlib.sha256(content).hexdigest()[:16]}.so"
    if built.exists():
        return built
    compiler = shutil.which("g++")
    root = Path(torch.__file__).parent
    if compiler is None or not (root / "include").is_dir():
        raise CannotBuild("no g++, or no headers of torch, to build torch's test device")
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / "lock").open("w") as lock:
        # Another process may be compiling, which takes both cores for a minute.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not built.exists():
            compile_to(built, compiler, root)
    return built


def compile_to(built: Path, compiler: str, root: Path) -> None:
    unfinished = built.with_suffix(f".{os.getpid()}")
    command = [
        *(compiler, "-std=c++20", "-O0", "-fPIC", "-shared", "-w"),
        *(f"-I{root / 'include'}", f"-I{root / 'include/torch/csrc/api/include'}"),
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
        *(str(HERE / "operators.cpp"), "-o", str(unfinished)),
        *(f"-L{root / 'lib'}", "-lc10", "-ltorch_cpu"),
    ]
    subprocess.run(command, check=True, timeout=BUILD_S)
    unfinished.rename(built)


def load() -> None:
    """Make `soft` torch's accelerator.

    `RINGFOLD_CUDA_LIBRARY` names the software driver, and `SOFTTORCH_LIBRARY` the result of
    `build`.
    """
    torch.ops.load_library(os.environ[LIBRARY])
    torch.utils.rename_privateuse1_backend("soft")
    torch._register_device_module("soft", _module())
    torch.utils.generate_methods_for_privateuse1_backend()
    if LEVEL_0 not in os.environ:
        DRIVER_STREAMS["soft"] = DriverStreams(_current, _external)
    ringfold.torch.register_backend()


def _current(index: int) -> int:
    handle: int = torch.accelerator.current_stream(torch.device("soft", index)).native_handle
    return handle


def _external(handle: int, index: int) -> Any:
    kind = torch._C._autograd.DeviceType.PrivateUse1.value
    return torch.Stream(stream_id=handle, device_index=index, device_type=kind)


@functools.cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL(os.environ[LIBRARY])


@contextlib.contextmanager
def held(stream: Any, limit_s: float | None = None) -> Iterator[None]:
    """Hold a stream until the end of the block, or until the limit if that is earlier."""
    library = _library()
    library.softtorch_hold(ctypes.c_void_p(stream.native_handle))
    timer = threading.Timer(limit_s or threading.TIMEOUT_MAX, library.softtorch_let_go)
    if limit_s is not None:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()
        library.softtorch_let_go()


def _module() -> Any:
    """Return the counterpart of `torch.cuda`, as far as torch needs it."""
    accelerator = torch.accelerator
    module: Any = ModuleType("torch.soft")
    module.Stream, module.Event = torch.Stream, torch.Event
    module.is_available = lambda: True
    module.is_initialized = lambda: True
    module._is_in_bad_fork = lambda: False
    module._lazy_init = lambda: None
    module.manual_seed_all = lambda seed: None
    module.device_count = _library().softtorch_device_count
    module.current_device = accelerator.current_device_index
    module.set_device = accelerator.set_device_index
    module.current_stream = accelerator.current_stream
    module.synchronize = accelerator.synchronize
    module.stream = lambda stream: stream
    return module
