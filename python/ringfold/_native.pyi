import os
from collections.abc import Callable, Sequence
from typing import Any, Self, final

from typing_extensions import disjoint_base

from ringfold.errors import RingfoldError
from ringfold.operation import Operation

__all__ = [
    "__version__",
    "AllReduceShortcut",
    "Buffer",
    "Calls",
    "Communicator",
    "Counter",
    "DeviceRequest",
    "DeviceWork",
    "FlightRing",
    "Lane",
    "Memory",
    "Registration",
    "RendezvousListener",
    "Request",
    "ShortestSum",
    "Work",
    "command",
    "derived_key",
    "diagnosis",
    "finish_callbacks",
    "fold",
    "host_id",
    "launch",
    "registers_buckets",
    "replaced_backend",
]

__version__: str

def command(program: list[str], arguments: list[str]) -> int: ...
def finish_callbacks() -> None: ...
def fold(inputs: Sequence[Buffer], output: Buffer, op: str) -> None: ...
def registers_buckets() -> bool: ...
def replaced_backend() -> str | None: ...
def diagnosis() -> tuple[int, bool, str | None, str | None, float, bool]: ...

@final
class Buffer:
    def __new__(cls, object: object, writable: bool = False) -> Buffer: ...
    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def count(self) -> int: ...
    @property
    def kind(self) -> str: ...
    @property
    def copied(self) -> bool: ...
    def tobytes(self) -> bytes: ...

def derived_key(purpose: str, context: bytes) -> bytes | None: ...
def host_id() -> str: ...
def launch() -> tuple[tuple[int, int, int | None, int | None, str], list[str]]: ...

@final
class RendezvousListener:
    @staticmethod
    def open(toward: str | None = None) -> RendezvousListener: ...
    @property
    def address(self) -> str: ...

@final
class Memory:
    @property
    def shared(self) -> bool: ...

@final
class Registration:
    @property
    def shared(self) -> bool: ...
    @property
    def closed(self) -> bool: ...
    def close(self) -> None: ...

@final
class Request:
    def __new__(
        cls,
        collective: str,
        counts: int | list[int] | tuple[list[int], list[int]],
        input: Buffer | None,
        output: Buffer | None,
        *,
        op: str = "sum",
        factor: float = 1.0,
        root: int | None = 0,
        tag: int = 0,
        algorithm: str | None = None,
        timeout: float | None = None,
        reproducible: bool = False,
    ) -> Request: ...
    @staticmethod
    def raw(
        collective: str,
        dtype: str,
        counts: int | list[int] | tuple[list[int], list[int]],
        input: tuple[int, int],
        output: tuple[int, int],
        *,
        op: str = "sum",
        factor: float = 1.0,
        root: int | None = 0,
        tag: int = 0,
        algorithm: str | None = None,
        timeout: float | None = None,
        owner: object = None,
    ) -> Request: ...
    def handle(
        self, communicator: Communicator | None = None, array: Any = None, like: Any = None
    ) -> Work: ...

@disjoint_base
class Calls:
    def __new__(cls, native: Communicator) -> Self: ...
    @property
    def _native(self) -> Communicator: ...
    @property
    def _groups(self) -> dict[int, list[tuple[Request, Work, bool]]]: ...
    def all_reduce(
        self,
        x: Any,
        op: Operation = "sum",
        *,
        out: Any = None,
        async_: bool = False,
        timeout: float | None = None,
        algorithm: str | None = None,
        reproducible: bool = False,
    ) -> Any: ...
    def _usual(
        self,
        collective: str,
        x: Any,
        out: Any,
        async_: bool,
        others: tuple[object, ...],
        rank: int | None = ...,
        tag: int = ...,
        op: Operation = ...,
    ) -> Any: ...

@final
class Communicator:
    @staticmethod
    def connect(
        *,
        rank: int | None = None,
        world_size: int | None = None,
        address: str | None = None,
        secret: str | None = None,
        timeout: float | None = None,
        connect_timeout: float | None = None,
        peer_timeout: float | None = None,
        transport: str | None = None,
        algorithm: str | None = None,
        straggler: str | None = None,
        reproducible: bool | None = None,
        protocol: str | None = None,
        max_channels: int | None = None,
        tuner_config: str | os.PathLike[str] | None = None,
        tuner_plugin: str | None = None,
        socket_ifname: str | None = None,
        sockets: int | None = None,
        listener: RendezvousListener | None = None,
    ) -> Communicator: ...
    @property
    def job(self) -> tuple[int, int] | None: ...
    def connect_beside(
        self,
        ranks: list[int],
        number: int,
        timeout: float,
        connect_timeout: float,
        reproducible: bool | None = None,
    ) -> Communicator: ...
    @property
    def rank(self) -> int: ...
    @property
    def world_size(self) -> int: ...
    @property
    def local_rank(self) -> int: ...
    @property
    def local_size(self) -> int: ...
    @property
    def hosts(self) -> int: ...
    @property
    def transport(self) -> str: ...
    def check(self, request: Request) -> None: ...
    def run(self, request: Request, array: Any = None, like: Any = None) -> Any: ...
    def start(self, request: Request, work: Work | None = None) -> Work: ...
    def start_group(self, calls: list[tuple[Request, Work]]) -> None: ...
    def alloc(self, bytes: int) -> Memory: ...
    def register(self, buffer: Buffer) -> Registration: ...
    def standing(self, timeout: float) -> list[tuple[int, int, str] | None]: ...
    def split(self, color: int | None, key: int = 0) -> Communicator | None: ...
    def stats(self) -> tuple[int, int, float, list[tuple[int, float, float, float, list[int]]]]: ...
    def reset_stats(self) -> None: ...
    @property
    def weights(self) -> list[int] | None: ...
    def set_weights(self, weights: list[int] | None) -> None: ...
    def rebalance(self) -> list[int] | None: ...
    def fault(self) -> RingfoldError | None: ...
    def abort(self, reason: str) -> None: ...
    def finish(self) -> None: ...
    def close(self, grace: float | None = None) -> None: ...

@final
class Counter:
    def __new__(cls) -> Counter: ...
    @property
    def value(self) -> int: ...
    def next(self) -> int: ...
    def retract(self) -> None: ...

@final
class FlightRing:
    def __new__(cls, entries_max: int) -> FlightRing: ...
    def next_id(self) -> int: ...
    def append(self, record: object) -> None: ...
    def remove(self, record: object) -> None: ...
    def replace(self, id: int, record: object) -> None: ...
    def records(self) -> list[Any]: ...

@final
class ShortestSum:
    def __new__(
        cls,
        communicator: Communicator,
        trace: Any,
        ring: FlightRing,
        collectives: Counter,
        done: object,
        unsettled: dict[Any, None],
        torch: dict[str, Any],
        bytes_max: int,
    ) -> ShortestSum: ...
    timeout_s: float
    is_off: bool
    def all_reduce(self, tensors: Any, opts: Any) -> Any: ...

@final
class AllReduceShortcut:
    def __new__(
        cls, function: Any, module: dict[str, Any], is_observed: Callable[[], bool], class_: type
    ) -> AllReduceShortcut: ...
    @property
    def __name__(self) -> str: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

@final
class Work:
    """A call that was started with `async_=True`.

    Until the call has completed, do not write to its input and do not access its output. Both are
    kept alive, even if the handle is dropped. Calls of one communicator run in the order in which
    they were started.
    """

    def wait(self, timeout: float | None = None) -> Any:
        """Wait until the call has completed and return its result, or raise its error.

        After `timeout` seconds, raises the builtin `TimeoutError`; the call then continues and can
        be waited for again. (If the call's own deadline passes, `RingfoldTimeoutError` is raised,
        and the communicator fails.)
        """

    def done(self) -> bool:
        """Whether the call has completed, successfully or not."""

    @property
    def source(self) -> int:
        """The rank of the sender, after a successful receive; otherwise raises `RuntimeError`."""

    def when_done(self, call: Callable[[], object]) -> None:
        """Run `call()` once after this call has completed, successfully or not.

        The library's thread `ringfold-done` runs callbacks one at a time; if the call has already
        completed, `call()` runs at once in the caller's thread. Callbacks may make calls and wait
        for them and for their callbacks. Exceptions of callbacks go to `sys.unraisablehook`.
        """

    def result(self) -> Any:
        """The result of the call; waits if necessary."""

    def exception(self) -> BaseException | None:
        """The error of the call, or `None`; waits if necessary."""

@final
class DeviceRequest:
    def __new__(
        cls,
        collective: str,
        dtype: str,
        counts: int | list[int] | tuple[list[int], list[int]],
        input: list[tuple[int, int]],
        output: list[tuple[int, int]],
        *,
        op: str = "sum",
        factor: float = 1.0,
        root: int | None = 0,
        tag: int = 0,
        algorithm: str | None = None,
        timeout: float | None = None,
    ) -> DeviceRequest: ...

@final
class Lane:
    @staticmethod
    def open(
        communicator: Communicator,
        ordinal: int,
        *,
        slot_bytes: int | None = None,
        slice_bytes: int | None = None,
        depth: int | None = None,
        direct: bool = True,
        one_shot: bool | None = None,
    ) -> Lane: ...
    @property
    def rank(self) -> int: ...
    @property
    def world_size(self) -> int: ...
    @property
    def device(self) -> int: ...
    @property
    def waits_on_host(self) -> bool: ...
    @property
    def result_stream(self) -> int: ...
    def enqueue(self, requests: list[DeviceRequest], stream: int) -> DeviceWork: ...
    def fault(self) -> RingfoldError | None: ...
    def standing(self, timeout: float) -> list[tuple[int, int, str] | None]: ...
    def abort(self, reason: str) -> None: ...
    def close(self) -> None: ...

@final
class DeviceWork:
    def join(self, stream: int) -> None: ...
    def done(self) -> bool: ...
    def wait(self, timeout: float | None = None) -> bool: ...
