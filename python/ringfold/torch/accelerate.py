"""Make Hugging Face Accelerate, and the Trainer on top of it, accept groups of ringfold on CPUs.

For ranks on CPUs, Accelerate accepts gloo and MPI by name and refuses all other backends; on GPUs
it accepts any backend. Accelerate has no way to register a backend. This module therefore replaces
the method that chooses the name, `PartialState._prepare_backend`, with one that keeps `ringfold`
where Accelerate would choose gloo or MPI. Nothing else changes, and nothing changes for programs
that request another backend. Checked with Accelerate 1.15.
"""

import functools
import inspect
from typing import Any

from ringfold.errors import UnsupportedError

NAME = "ringfold"
_METHOD = "_prepare_backend"
_ARGUMENT = "backend"
_INSTEAD = 'call torch.distributed.init_process_group("ringfold") before Accelerator() instead'


def support_accelerate() -> None:
    """Let Accelerate accept `backend="ringfold"`, and the Trainer `ddp_backend="ringfold"`, for
    ranks on CPUs.

    Call this before `Accelerator`, `PartialState` or `TrainingArguments` is created. Repeated calls
    have no effect. Raises `UnsupportedError` if this release of Accelerate chooses its backend
    differently, and `ImportError` if Accelerate is not installed.
    """
    from accelerate.state import PartialState

    original = getattr(PartialState, _METHOD, None)
    if getattr(original, "is_of_ringfold", False):
        return
    if original is None or _ARGUMENT not in inspect.signature(original).parameters:
        raise UnsupportedError(
            f"this release of Accelerate chooses its backend differently; {_INSTEAD}"
        )
    setattr(PartialState, _METHOD, _keeping(original))


def _keeping(original: Any) -> Any:
    """The method that chooses the backend, changed to keep `ringfold`."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def prepare(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        backend, distributed_type = original(*args, **kwargs)
        asked_for = signature.bind(*args, **kwargs).arguments.get(_ARGUMENT)
        return (NAME if asked_for == NAME else backend), distributed_type

    prepare.is_of_ringfold = True  # type: ignore[attr-defined]
    return prepare
