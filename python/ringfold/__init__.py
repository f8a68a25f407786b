"""ringfold: collective communication for data-parallel training.

    import numpy as np
    import ringfold

    with ringfold.init() as comm:
        print(comm.all_reduce(np.ones(4)))

Start the program with `ringfold run --ranks 4 -- python program.py`, or under torchrun, mpirun or
srun. A program started alone is a job of one rank.
"""

from typing import TYPE_CHECKING, Any, Unpack

from ringfold import _native, _renamed
from ringfold._native import Work
from ringfold.communicator import Communicator
from ringfold.errors import (
    AbortedError,
    BootstrapError,
    ClosedError,
    CorruptError,
    InvalidArgumentError,
    MismatchError,
    PeerFailedError,
    RingfoldError,
    RingfoldSystemError,
    RingfoldTimeoutError,
    UnsupportedError,
)
from ringfold.folding import fold
from ringfold.operation import Operation, PremulSum, premul_sum
from ringfold.registration import Registration
from ringfold.stats import PeerStats, Standing, Stats
from ringfold.tuning import Tuning, checked

__version__ = _native.__version__

__all__ = [
    "AbortedError",
    "BootstrapError",
    "ClosedError",
    "Communicator",
    "CorruptError",
    "InvalidArgumentError",
    "MismatchError",
    "Operation",
    "PeerFailedError",
    "PeerStats",
    "PremulSum",
    "Registration",
    "RingfoldError",
    "RingfoldSystemError",
    "RingfoldTimeoutError",
    "Standing",
    "Stats",
    "Tuning",
    "UnsupportedError",
    "Work",
    "fold",
    "init",
    "premul_sum",
]

if not TYPE_CHECKING:
    __getattr__ = _renamed.finder(__name__, _renamed.ERRORS)


def init(
    rank: int | None = None,
    world_size: int | None = None,
    address: str | None = None,
    secret: str | None = None,
    timeout: float | None = None,
    transport: str | None = None,
    algorithm: str | None = None,
    *,
    connect_timeout: float | None = None,
    peer_timeout: float | None = None,
    socket_ifname: str | None = None,
    tuning: Tuning | None = None,
    **old: Unpack[Tuning],
) -> Communicator:
    """Join a job and return its communicator.

    Defaults come from the environment: `RINGFOLD_*`, then the launcher's variables (torchrun,
    Slurm, Open MPI, PMI, Kubernetes). A process that has neither is a job of one rank.

    Args:
        rank: This process' rank.
        world_size: The number of ranks.
        address: The address of rank 0, `host:port`, or `unix:@name` on one host. Several
            addresses, separated by commas, are tried in order.
        secret: The job's secret. Without one, no socket listens beyond this host.
        timeout: The default deadline of a call, in seconds.
        transport: `auto` (shared memory to ranks of this host; RDMA to the others if all ranks have
            an RDMA device, else TCP), `shm`, `tcp` or `rdma`.
        algorithm: The algorithm of every collective that supports it, instead of the tuner's
            choice.
        connect_timeout: The deadline for joining, in seconds.
        peer_timeout: The time after which a silent host counts as failed, 2 to 120 seconds. Rank
            0's value applies.
        socket_ifname: The network interfaces for data between hosts, as in
            RINGFOLD_SOCKET_IFNAME; several names, separated by commas, are rails.
        tuning: Further settings by name, such as `{"max_channels": 2}`; see `Tuning`.
        old: Deprecated: keys of `tuning` as arguments, until version 0.2.
    """
    # `connect` has the same argument names.
    arguments: dict[str, Any] = locals()
    del arguments["tuning"], arguments["old"]
    settings = checked(tuning, old)
    return Communicator(_native.Communicator.connect(**arguments, **settings))
