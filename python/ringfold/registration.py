"""The handle of a memory registration."""

from types import TracebackType
from typing import Any

from ringfold import _native


class Registration:
    """The result of `Communicator.register`. As a context manager, a registration returns the
    array, and ends with the block.

    Until the registration ends, the array is registered memory of its communicator, is kept alive,
    and cannot be resized (NumPy and `bytearray` refuse to). Ending a registration is local: it
    waits only for this rank's calls in progress.
    """

    def __init__(self, native: _native.Registration, array: Any) -> None:
        self._native = native
        self._array = array

    @property
    def array(self) -> Any:
        """The registered array."""
        return self._array

    @property
    def shared(self) -> bool:
        """Whether peers can access the array: not over TCP, nor in a job of one rank."""
        return self._native.shared

    @property
    def closed(self) -> bool:
        """Whether the registration has ended."""
        return self._native.closed

    def close(self) -> None:
        """End the registration: the memory is private to this process again. May be repeated."""
        self._native.close()

    def __enter__(self) -> Any:
        return self._array

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<ringfold.Registration, {'closed' if self.closed else 'open'}>"
