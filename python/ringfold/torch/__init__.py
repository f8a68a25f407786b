"""ringfold as a PyTorch backend.

    import torch.distributed as dist

    dist.init_process_group("ringfold")

No import is needed: torch finds the backend by the package's entry points.

This module imports torch only within functions. `import torch` calls `_autoload`, and would find a
partially initialized module if this module were the first to import torch.
"""

import importlib
import os
from typing import TYPE_CHECKING, Any

from ringfold import _renamed

if TYPE_CHECKING:
    from ringfold.torch.accelerate import support_accelerate
    from ringfold.torch.backend import RingfoldProcessGroup
    from ringfold.torch.flight_dump import dump_flight_record
    from ringfold.torch.launch import bootstrap_env
    from ringfold.torch.memory import empty, register
    from ringfold.torch.monitored import MonitoredBarrierError, monitored_barrier
    from ringfold.torch.packing import PackedAllReduce, make_allreduce_cb
    from ringfold.torch.work import WaitTimeoutError

__all__ = [
    "MonitoredBarrierError",
    "PackedAllReduce",
    "RingfoldProcessGroup",
    "WaitTimeoutError",
    "bootstrap_env",
    "dump_flight_record",
    "empty",
    "make_allreduce_cb",
    "monitored_barrier",
    "register",
    "register_backend",
    "support_accelerate",
]

_PLACES = {
    "MonitoredBarrierError": "monitored",
    "Options": "options",
    "PackedAllReduce": "packing",
    "RingfoldProcessGroup": "backend",
    "WaitTimeoutError": "work",
    "bootstrap_env": "launch",
    "dump_flight_record": "flight_dump",
    "empty": "memory",
    "make_allreduce_cb": "packing",
    "monitored_barrier": "monitored",
    "register": "memory",
    "support_accelerate": "accelerate",
}
"""The modules of the public names, loaded on first use, because torch always loads this module."""


_old_name = _renamed.finder(__name__, {"WaitTimeout": "WaitTimeoutError"}, depth=3)


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        return _old_name(name)
    return getattr(importlib.import_module(f"ringfold.torch.{_PLACES[name]}"), name)


def register_backend() -> None:
    """Register the backend with torch, for tensors of the host and of torch's accelerator. torch
    makes this call automatically. May be repeated, for example after another device was registered
    with torch, or after RINGFOLD_TORCH_REPLACE was set.
    """
    import torch
    import torch.distributed as dist

    accelerator = torch.accelerator.current_accelerator(check_available=False)
    devices = ["cpu"] if accelerator is None else ["cpu", accelerator.type]
    if "RINGFOLD" not in dist.Backend._plugins:
        dist.Backend.register_backend("ringfold", _create, extended_api=True, devices=devices)
    dist.Backend.backend_capability["ringfold"] = devices
    if getattr(dist.distributed_c10d, "_TORCHCOMM_AVAILABLE", False):
        importlib.import_module("ringfold.torch.torchcomms").install()
    if os.environ.get("RINGFOLD_TORCH_REPLACE"):
        importlib.import_module("ringfold.torch.replace").install()


def _create(opts: Any, pg_options: Any = None) -> Any:
    from ringfold.torch.backend import create

    return create(opts, pg_options)


def _autoload() -> None:
    """Register the backend at `import torch` (torch up to 2.13), where an exception would break the
    import.
    """
    try:
        import torch.distributed as dist

        if dist.is_available():
            register_backend()
    except Exception as error:
        import warnings

        warnings.warn(f"the backend `ringfold` is not available: {error}", stacklevel=2)
