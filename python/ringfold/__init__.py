"""ringfold: collective communication for data-parallel training.

    import numpy as np
    import ringfold

    with ringfold.init() as comm:
        print(comm.all_reduce(np.ones(4)))

Start the program with `ringfold run --ranks 4 -- python program.py`, or under torchrun, mpirun or
srun. A program started alone is a job of one rank.
"""

import os
from typing import TYPE_CHECKING

from ringfold import _native, _renamed
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
from ringfold.operation import Operation, PremulSum, premul_sum
from ringfold.registration import Registration
from ringfold.stats import PeerStats, Standing, Stats
from ringfold.work import Work

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
    "UnsupportedError",
    "Work",
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
    straggler: str | None = None,
    deterministic: bool | None = None,
    *,
    connect_timeout: float | None = None,
    peer_timeout: float | None = None,
    protocol: str | None = None,
    max_channels: int | None = None,
    tuner_config: str | os.PathLike[str] | None = None,
    tuner_plugin: str | None = None,
    socket_ifname: str | None = None,
    sockets: int | None = None,
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
        straggler: `off`, `next2` or `tail`: whether large all_reduce and reduce_scatter calls
            bypass a slow rank; see docs/guides/stragglers.md. *
        deterministic: Require the same bits in every run; refuses a straggler policy, which
            changes the order of additions.
        connect_timeout: The deadline for joining, in seconds.
        peer_timeout: The time after which a silent host counts as failed, 2 to 120 seconds. Rank
            0's value applies.
        protocol: `ll`, `simple` or `zero_copy`, for every call that supports it; see
            docs/guides/tuning.md.
        max_channels: The maximum number of independent pipelines of a collective over messages; on
            TCP, of connections per pair of ranks. *
        tuner_config: A file of rules, instead of RINGFOLD_TUNER_CONFIG. Rank 0's value applies.
        tuner_plugin: A shared library with NCCL's tuner interface. *
        socket_ifname: The network interfaces for data between hosts, as in
            RINGFOLD_SOCKET_IFNAME; several names, separated by commas, are rails.
        sockets: The number of TCP sockets of each channel between two ranks, 1 to 64. *

    Arguments with * must be the same on all ranks.
    """
    # `connect` has the same argument names.
    return Communicator(_native.Communicator.connect(**locals()))
