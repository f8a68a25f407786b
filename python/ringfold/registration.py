"""The handle of memory that is registered for a while."""

from types import TracebackType
from typing import Any

from ringfold import _native


class Registration:
    """What `Communicator.register` gives: as a context manager it is the array, and ends the registration at the end.

    Until then the array is registered memory of its communicator, is kept alive, and cannot be resized (NumPy and
    `bytearray` refuse to). The end is this rank's own affair: it waits for the calls under way on this rank, nothing else.
    """

    def __init__(self, native: _native.Registration, array: Any) -> None:
        self._native = native
        self._array = array

    @property
    def array(self) -> Any:
        """The array."""
        return self._array

    @property
    def shared(self) -> bool:
        """Whether the peers can reach it: not over TCP, nor in a job of one rank."""
        return self._native.shared

    @property
    def closed(self) -> bool:
        """Whether the registration has ended."""
        return self._native.closed

    def close(self) -> None:
        """End the registration: the memory is this process' own again. May be repeated."""
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
