"""Derive the variables of torch's `init_method="env://"` from those of the launcher.

The core identifies the process, because only the core has a table of launchers. env:// also needs
torch's store, whose port must not be guessed. Rank 0 opens the store on a free port, keeps it, and
sends the port number to the other ranks over a communicator, which joins as `ringfold.init()` does.
When torch gets the port on rank 0, it finds and shares the store of its own process. The ranks of
one host reach the store on the loopback interface, those of several hosts at the address where they
joined. Joining therefore works wherever `ringfold.init()` does. If `MASTER_ADDR` and `MASTER_PORT`
are set, as by torchrun, there is nothing to agree on. If the launcher does not tell which ranks
share a host, the ranks exchange host ids through the store.
"""

import os
import socket
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

import ringfold
from ringfold import _native
from ringfold.errors import BootstrapError, InvalidArgumentError

_TIMEOUT = timedelta(minutes=5)
_LOOPBACK = "127.0.0.1"
_HOST, _PORT = "MASTER_ADDR", "MASTER_PORT"

_TRY_S = 5.0
"""Maximum time to try one of several addresses, in seconds."""

_stores: list[Any] = []
"""Rank 0's stores, which serve the other ranks until the process ends."""


class Launch(NamedTuple):
    """A process' place in its job."""

    rank: int
    """This process' rank."""
    world_size: int
    """The number of ranks."""
    local_rank: int
    """This process' rank on its host."""
    local_world_size: int
    """The number of ranks on its host."""
    launcher: str
    """The launcher that provided these values."""


def bootstrap_env(timeout: timedelta = _TIMEOUT) -> Launch:
    """Set RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT for
    `init_process_group`.

    Supports torchrun, `ringfold run`, srun, mpirun (Open MPI, MPICH, Intel MPI, MVAPICH) and
    Kubernetes Indexed Jobs; without any of these launchers, the process is a job of one rank.
    Variables that are set already and consistent are not changed. All ranks must call this, once or
    repeatedly. The call blocks until all ranks have made it, at most `timeout`, unless the launcher
    set everything.

    Raises `InvalidArgumentError` if the launcher's variables are incomplete, and `BootstrapError`
    if the ranks cannot join: on several hosts, set `MASTER_ADDR` and `MASTER_PORT`, or
    `RINGFOLD_ADDR` and `RINGFOLD_SECRET`, on all ranks.
    """
    if bool(os.environ.get(_HOST)) is not bool(os.environ.get(_PORT)):
        raise InvalidArgumentError(f"only one of {_HOST} and {_PORT} is set; set both or neither")
    place, hosts = _native.launch()
    rank, world_size, local_rank, local_world_size, launcher = place
    if os.environ.get(_HOST):
        host, port = os.environ[_HOST], int(os.environ[_PORT])
    else:
        host, port = _agree(rank, hosts or [_LOOPBACK], timeout)
    if local_rank is None or local_world_size is None:
        local_rank, local_world_size = _neighbours(
            _store(host, port, rank, timeout), rank, world_size
        )
    numbers = {
        "RANK": rank,
        "WORLD_SIZE": world_size,
        "LOCAL_RANK": local_rank,
        "LOCAL_WORLD_SIZE": local_world_size,
    }
    os.environ.update({name: str(number) for name, number in numbers.items()})
    os.environ.update({_HOST: host, _PORT: str(port)})
    return Launch(rank, world_size, local_rank, local_world_size, launcher)


def _agree(rank: int, hosts: list[str], timeout: timedelta) -> tuple[str, int]:
    """Open the store on rank 0 and send its port to all ranks; return the host at which this rank
    reaches the store, and the port.
    """
    port = 0
    if rank == 0:
        listener = socket.create_server((_LOOPBACK, 0)) if hosts == [_LOOPBACK] else _everywhere()
        port = listener.getsockname()[1]
        _stores.append(_serve(port, timeout, listener.detach()))
    with ringfold.init(
        timeout=timeout.total_seconds(), connect_timeout=timeout.total_seconds()
    ) as communicator:
        port = int(communicator.broadcast(torch.tensor([port], device="cpu")))
    # Only connecting to the store shows which of several addresses works from this rank.
    return (hosts[0] if len(hosts) == 1 else _reachable(hosts, port)), port


def _everywhere() -> socket.socket:
    """A listener on a free port of all interfaces."""
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", 0))


def _reachable(hosts: list[str], port: int) -> str:
    tried = []
    for host in hosts:
        try:
            socket.create_connection((host, port), _TRY_S).close()
        except OSError as error:
            tried.append(f"{host}: {error}")
        else:
            return host
    raise BootstrapError(f"cannot reach rank 0's store at port {port} of {'; '.join(tried)}")


def _serve(port: int, timeout: timedelta, listener: int | None = None) -> Any:
    """The store that this process serves at `port`; torch will use the same store."""
    how: dict[str, Any] = {} if listener is None else {"master_listen_fd": listener}
    return dist.TCPStore(
        _LOOPBACK,
        port,
        None,
        True,
        timeout=timeout,
        wait_for_workers=False,
        multi_tenant=True,
        **how,
    )


def _store(host: str, port: int, rank: int, timeout: timedelta) -> Any:
    """The store at this address, served by rank 0."""
    if rank == 0:
        _stores.append(_serve(port, timeout))
        return _stores[-1]
    return dist.TCPStore(host, port, None, False, timeout=timeout, wait_for_workers=False)


def _neighbours(store: Any, rank: int, world_size: int) -> tuple[int, int]:
    """This rank's number on its host, and the host's number of ranks. Blocks until all ranks have
    announced their hosts.
    """
    store = dist.PrefixStore("ringfold/launch", store)
    store.set(str(rank), _native.host_id())
    hosts = store.multi_get([str(other) for other in range(world_size)])
    return hosts[:rank].count(hosts[rank]), hosts.count(hosts[rank])
