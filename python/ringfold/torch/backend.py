"""The process group classes: one set of methods, and the base class that a group needs.

The base is `ProcessGroup` if ringfold serves all of a group's devices: calls from Python are then
ordinary method calls, and their handles have all methods. If another backend serves one of the
devices, the base is `Backend`, from torch 2.14 on, which torch wraps in a `ProcessGroup` of its
own. Up to 2.15, torch also wraps the handles of such calls, in handles that never report
completion. With TORCH_DISTRIBUTED_DEBUG=DETAIL, torch wraps backends in a way that breaks Python
ones, but does not wrap a `ProcessGroup`.
"""

import sys
import weakref
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from functools import cache, partial
from types import FunctionType
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch._C._dynamo import eval_frame

from ringfold import _exit, _native
from ringfold._exit import GRACE_S
from ringfold.errors import InvalidArgumentError, RingfoldError, UnsupportedError, in_words
from ringfold.torch import beside, bootstrap, dispatcher, objects, shortcut, watch
from ringfold.torch.collectives import Collectives
from ringfold.torch.device import DRIVER_STREAMS, DeviceSide
from ringfold.torch.flight_dump import before_leaving
from ringfold.torch.flight_recorder import Trace, copied
from ringfold.torch.issue import Call, Issuer
from ringfold.torch.memory import Buckets
from ringfold.torch.monitored import Barriers, MonitoredBarrier
from ringfold.torch.options import Options
from ringfold.torch.point_to_point import PointToPoint
from ringfold.torch.sealed import Seal, SealedCall

NAME = "ringfold"
"""The backend's name for `init_process_group`."""
_DEFAULT = "default_pg"
"""torch's description of the default group."""
_DEFAULTS = Options()
_ABORTED = "ProcessGroup.abort was called"


class Group(Collectives, PointToPoint, MonitoredBarrier):
    """The common part of both process group classes: a communicator of the core, its lifetime, and
    torch's queries.
    """

    alias = NAME
    """The backend that the program has asked for."""

    def _join(
        self,
        store: Any,
        rank: int,
        world_size: int,
        timeout: timedelta,
        name: str,
        ranks: Sequence[int] = (),
        options: Options = _DEFAULTS,
    ) -> None:
        """Connect to the other ranks. Blocks until all have joined."""
        self._options = options
        self._rank = rank
        self._world_size = world_size
        self._name = name
        self._description = ""
        self._communicator, key, self._store = bootstrap.connect(
            store,
            rank,
            world_size,
            timeout,
            beside.jobs(open_communicators()),
            reproducible=options.reproducible or None,
        )
        self._call = Call
        if key is not None and is_on_network(self._communicator):
            self._call = partial(SealedCall, Seal(key, self._communicator))
        self.trace = Trace(
            self._communicator, name, ranks or range(world_size), rank, "" if ranks else _DEFAULT
        )
        self._side = DeviceSide(self._communicator, self.trace, self._check_device)
        self._issuer = Issuer(self._communicator, self._side, self.trace)
        self._shortest = self._issuer.shortest
        self.set_timeout(timeout)
        self.buckets = Buckets(self._communicator)
        self._barriers = Barriers(self._store, rank, world_size)
        objects.install()
        _open.add(self)
        _exit.prepare()
        watch.watch(self.trace)

    def getBackendName(self) -> str:  # noqa: N802: torch's name
        """The backend's name, `ringfold`. torch's C++ takes a group with another backend's name for
        an object of that backend's class.
        """
        return NAME

    def name(self) -> str:
        """The backend's name for programs: `ringfold`, or `gloo` if the group replaces it."""
        return self.alias

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the default deadline of later calls."""
        self._timeout_s = self._shortest.timeout_s = timeout.total_seconds()

    _set_default_timeout = set_timeout

    def _get_sequence_number_for_group(self) -> int:
        return self.trace.counter.value

    def _set_sequence_number_for_group(self) -> None:
        """Do nothing: the core counts calls, the same on all ranks."""

    def shutdown(self) -> None:
        """Wait for this rank's calls in progress, notify other ranks, and free all resources."""
        before_leaving(self.trace)
        self._leave()
        # The communicator is closed first: in a signal handler, this ends the call in progress, and
        # ending a registration waits for that call.
        self._communicator.close()
        self._issuer.deliver()
        self._side.close()
        self.buckets.close()

    def abort(self) -> None:
        """End the group on all ranks: calls that wait in the group raise `AbortedError`."""
        self._leave()
        self._communicator.abort(_ABORTED)
        self._side.abort(_ABORTED)
        self.buckets.close()

    def _part(self, store: Any, ranks: list[int], timeout: timedelta | None, name: str) -> Any:
        """A group of some of this group's ranks, ordered as listed; `None` on other ranks.

        Blocks until all listed ranks have joined.
        """
        if self._rank not in ranks:
            return None
        timeout = timedelta(seconds=self._timeout_s) if timeout is None else timeout
        of_job = [self.trace.ranks[rank] for rank in ranks]
        make: Any = type(self)
        own = ranks.index(self._rank)
        part = make(store, own, len(ranks), timeout, name, of_job, self._options)
        part.alias = self.alias
        return part

    def _leave(self) -> None:
        _open.discard(self)
        watch.forget(self.trace)

    def eager_connect_single_device(self, device: torch.device | None = None) -> None:
        """Open the lane to the device that the group is bound to."""
        if device is not None and device.type in DRIVER_STREAMS:
            self._side.connect(device)

    def _check_device(self, device: torch.device) -> None:
        """Raise if the group's calls on this device belong to another backend."""

    @property
    def supports_splitting(self) -> bool:
        """Whether the group has `split`."""
        return True

    @property
    def supports_coalescing(self) -> bool:
        """Whether torch coalesces batches of messages: no, because their order does not matter."""
        return False

    @property
    def communicator(self) -> Any:
        """The core's communicator, for registering memory and for inspection."""
        return self._communicator


def _check_place(store: Any, rank: int, world_size: int, timeout: timedelta) -> None:
    """Raise for arguments that would make the group wait for ranks that do not exist."""
    if not isinstance(store, dist.Store):
        raise InvalidArgumentError(f"a process group needs a torch store, not {store!r}")
    if not 0 <= rank < world_size:
        raise InvalidArgumentError(f"rank {rank} is out of range for {world_size} ranks")
    if not isinstance(timeout, timedelta) or timeout <= timedelta(0):
        raise InvalidArgumentError(
            f"the timeout must be a positive `datetime.timedelta`, not {timeout!r}"
        )


class RingfoldProcessGroup(Group, dist.ProcessGroup):
    """A process group whose devices ringfold serves alone, or that cannot be a Python `Backend`.

    `init_process_group("ringfold")` makes one. Programs that manage groups themselves, such as
    torchft, make them from a torch store: all `world_size` ranks with the same entries (a
    `PrefixStore` of their own), each with its `rank`. The constructor blocks until all ranks have
    joined, at most `timeout`, which is also the default deadline of calls. Errors are those of
    `ringfold.errors`; after a fatal one, only `abort` and `shutdown` remain, and a new group may be
    made in the same process. `name` appears in messages and in the flight record.
    """

    def __init__(
        self,
        store: Any,
        rank: int,
        world_size: int,
        timeout: timedelta = dist.default_pg_timeout,
        name: str = NAME,
        ranks: Sequence[int] = (),
        options: Options = _DEFAULTS,
    ) -> None:
        _check_place(store, rank, world_size, timeout)
        # Two arguments: with a store, pybind creates an object on which Python's methods are not
        # found.
        dist.ProcessGroup.__init__(self, rank, world_size)
        self._join(store, rank, world_size, timeout, name, ranks, options)
        self._parts: list[RingfoldProcessGroup] = []
        self._add_filler(rank, world_size)
        shortcut.install(RingfoldProcessGroup)

    def _add_filler(self, rank: int, world_size: int) -> None:
        """Register a stub for torch code that asks a group for the backend of a device; the stub
        raises when used.
        """
        custom = dist.ProcessGroup.BackendType.CUSTOM
        options = c10d.FakeProcessGroup.Options()
        options.error_on_collective = True
        filler = c10d.FakeProcessGroup._create_internal(rank, world_size, options)
        for device in backend_devices():
            self._register_backend(torch.device(device), custom, filler)
        self._set_default_backend(custom)

    def _check_device(self, device: torch.device) -> None:
        # torch passes all calls of the group to this class.
        said = dist.distributed_c10d._world.pg_backend_config.get(self, "")
        backends = dict(pair.split(":", 1) for pair in said.split(",") if ":" in pair)
        if backends.get(device.type, NAME) not in (NAME, self.alias):
            raise UnsupportedError(
                f"a tensor on `{device}` in a group made with `{said}`, which this torch serves "
                "with ringfold alone; use `ringfold`, a group of its own for the device, or torch "
                "2.14"
            )

    def splitGroup(  # noqa: N802
        self,
        ranks: list[int],
        timeout: timedelta | None,
        opts: Any,
        name: str | None,
        description: str | None,
        _: Any = None,
    ) -> Any:
        """A group of some of this group's ranks; `None` on other ranks."""
        members = "-".join(map(str, ranks))
        # torch's name depends on how many groups a rank has made, so it may differ between ranks.
        store = dist.PrefixStore(f"split/{members}/", self._store)
        name = f"{self._name}:split:{members}" if name is None else name
        part = self._part(store, list(ranks), timeout, name)
        if part is not None:
            part.setGroupDesc(description or "")
            # torch holds only the C++ half: a group without its Python half has no methods.
            self._parts.append(part)
        return part

    def get_group_store(self) -> Any:
        """The store through which the ranks have joined."""
        return self._store

    def _enable_collectives_timing(self) -> None:
        """Do nothing: the flight record has the times of all calls."""

    def setGroupName(self, name: str) -> None:  # noqa: N802
        """Set torch's name for the group."""
        self._name = self.trace.name = name

    def getGroupName(self) -> str:  # noqa: N802
        """torch's name for the group."""
        return self._name

    def setGroupDesc(self, description: str) -> None:  # noqa: N802
        """Set the user's description of the group."""
        self._description = self.trace.description = description

    def getGroupDesc(self) -> str:  # noqa: N802
        """The user's description of the group."""
        return self._description


dispatcher.observe(RingfoldProcessGroup)


class RingfoldBackend(Group, c10d.Backend):
    """ringfold's part of a group with several backends; torch before 2.14 cannot create Python
    objects of such a class.
    """

    def __init__(
        self,
        store: Any,
        rank: int,
        world_size: int,
        timeout: timedelta,
        name: str,
        ranks: Sequence[int] = (),
        options: Options = _DEFAULTS,
    ) -> None:
        c10d.Backend.__init__(self, rank, world_size)
        self._join(store, rank, world_size, timeout, name, ranks, options)

    def split(self, store: Any, ranks: list[int], opts: Any) -> Any:
        """A group of some of this group's ranks; only these ranks call `split`, because torch
        crashes on a result of `None`.
        """
        if self._rank not in ranks:
            raise UnsupportedError(
                f"rank {self._rank} is not among the ranks {list(ranks)} of its split; use "
                "`new_group`"
            )
        timeout = None if opts is None else opts._timeout
        return self._part(store, list(ranks), timeout, f"{self._name}:split")

    def merge(self, store: Any, opts: Any, rank: int, world_size: int) -> Any:
        """A group of this group's ranks and another's."""
        timeout = timedelta(seconds=self._timeout_s) if opts is None else opts._timeout
        name = f"{self._name}:merge"
        return RingfoldBackend(store, rank, world_size, timeout, name, (), self._options)

    @property
    def options(self) -> Any:
        """The object from which torch reads the group's timeout."""
        return c10d.Backend.Options(NAME, timeout=timedelta(seconds=self._timeout_s))


def backend_devices() -> list[str]:
    """The device types that groups of this process serve."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return ["cpu"] if accelerator is None else ["cpu", accelerator.type]


def is_on_network(communicator: _native.Communicator) -> bool:
    """Whether ranks communicate over sockets; the same on all ranks."""
    return communicator.hosts > 1 or communicator.transport == "tcp"


def create(opts: Any, pg_options: Any = None) -> Any:
    """Make a process group; torch calls this for each group that this process is in."""
    backends, device = asked_for()
    group = group_class(backends)(
        opts.store,
        opts.group_rank,
        opts.group_size,
        opts.timeout,
        opts.group_id,
        opts.global_ranks_in_group,
        pg_options if isinstance(pg_options, Options) else _DEFAULTS,
    )
    if isinstance(group, dist.ProcessGroup):
        # For a `Backend`, torch makes this call.
        group.eager_connect_single_device(device)
    return group


def group_class(backends: set[str]) -> type:
    """The class of a group that these backends serve."""
    is_wrapped = dist.get_debug_level() == dist.DebugLevel.DETAIL
    is_alone = backends == {NAME}
    return (
        RingfoldProcessGroup
        if is_alone or is_wrapped or not can_derive_backends()
        else RingfoldBackend
    )


def asked_for() -> tuple[set[str], torch.device | None]:
    """The backends of all devices of the group that torch is making, and the device that the group
    is bound to.

    torch passes neither to all constructors, so this function reads local variables of the function
    that calls them. If these variables are not found, another backend is assumed in a process with
    an accelerator.
    """
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        config = frame.f_locals.get("backend_config")
        if isinstance(config, dist.distributed_c10d.BackendConfig):
            backends = set(config.get_device_backend_map().values())
            return backends, frame.f_locals.get("device_id")
    return {NAME, "undefined"} if torch.accelerator.is_available() else {NAME}, None


@cache
def can_derive_backends() -> bool:
    """Whether Python can create objects of a class derived from `Backend`."""

    class Probe(c10d.Backend):
        pass

    try:
        Probe(0, 1)
    except TypeError:
        return False
    return True


def hide_from_compiler(*classes: type) -> None:
    """Exclude these classes' methods from `torch.compile`: torch's C++ calls them while a compiled
    program runs.
    """
    skip = eval_frame._FrameExecStrategy(eval_frame._FrameAction.SKIP, eval_frame._FrameAction.SKIP)
    for each in classes:
        for method in vars(each).values():
            if isinstance(method, FunctionType):
                eval_frame.set_code_exec_strategy(method.__code__, skip)


hide_from_compiler(Collectives, PointToPoint, Group, RingfoldProcessGroup, RingfoldBackend)

_open: "weakref.WeakSet[Group]" = weakref.WeakSet()


def finish_all() -> None:
    """Wait for the started calls of all groups, at interpreter exit."""
    for group in list(_open):
        group.communicator.finish()


def open_communicators() -> list[_native.Communicator]:
    """The communicators of this process' groups, oldest first."""
    groups = sorted(copied(_open), key=lambda group: group.trace.id)
    return [group.communicator for group in groups]


def close_all(error: BaseException | None) -> None:
    """Close all groups at interpreter exit, or abort them after an uncaught exception, so that no
    rank waits.
    """
    watch.end()
    for group in list(_open):
        # The program has already seen this error.
        with suppress(RingfoldError):
            if error is None:
                group.communicator.close(GRACE_S)
                group._side.close(GRACE_S)
                group.shutdown()
            else:
                group.communicator.abort(in_words(error))
                group._side.abort(in_words(error))
                group._side.close()


_exit.on_exit(finish_all, close_all)
