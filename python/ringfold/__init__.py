"""ringfold: collective communication for data-parallel training.

    import numpy as np
    import ringfold

    with ringfold.init() as comm:
        print(comm.all_reduce(np.ones(4)))

Start it with `ringfold run --ranks 4 -- python program.py`, or under torchrun, mpirun or srun; alone it is a job of one.
"""

import atexit
import os

from ringfold import _native
from ringfold.communicator import (
    Communicator,
    Operation,
    PeerStats,
    PremulSum,
    Standing,
    Stats,
    close_all,
    premul_sum,
)
from ringfold.errors import (
    Aborted,
    BootstrapError,
    Closed,
    Corrupt,
    InvalidArgument,
    Mismatch,
    PeerFailed,
    RingfoldError,
    RingfoldSystemError,
    Timeout,
    Unsupported,
)
from ringfold.registration import Registration
from ringfold.work import Work

__version__ = _native.__version__

__all__ = [
    "Aborted",
    "BootstrapError",
    "Closed",
    "Communicator",
    "Corrupt",
    "InvalidArgument",
    "Mismatch",
    "Operation",
    "PeerFailed",
    "PeerStats",
    "PremulSum",
    "Registration",
    "RingfoldError",
    "RingfoldSystemError",
    "Standing",
    "Stats",
    "Timeout",
    "Unsupported",
    "Work",
    "init",
    "premul_sum",
]


def init(
    rank: int | None = None,
    world_size: int | None = None,
    address: str | None = None,
    secret: str | None = None,
    timeout: float | None = None,
    transport: str | None = None,
    algorithm: str | None = None,
    channels: int | None = None,
    straggler: str | None = None,
    deterministic: bool | None = None,
    *,
    connect_timeout: float | None = None,
    peer_timeout: float | None = None,
    protocol: str | None = None,
    min_channels: int | None = None,
    max_channels: int | None = None,
    chunk_bytes: int | None = None,
    tuner_config: str | os.PathLike[str] | None = None,
    tuner_plugin: str | None = None,
) -> Communicator:
    """Join a job and return its communicator.

    What is not given comes from the environment: `RINGFOLD_*`, then the launcher's variables (torchrun, Slurm, Open MPI,
    PMI, Kubernetes). A process without either is a job of one rank.

    rank, world_size: this process' number, and how many there are.
    address: where rank 0 is met, `host:port`, or `unix:@name` on one host; several, separated by commas, are tried in order.
    secret: the job's secret; without one nothing listens beyond this host.
    timeout: the deadline in seconds of every call that has none of its own.
    transport: `auto` (shared memory to ranks of this host, TCP to the others), `shm` or `tcp`.
    algorithm: that of every collective which has it, instead of the tuner's choice.
    channels: independent pipelines of every collective that goes by messages; connections per pair of ranks on TCP.
    straggler: "off", "next2" or "tail": whether large all_reduce and reduce_scatter calls go around a slow rank; see
        docs/stragglers.md. The same on all ranks.
    deterministic: insists on the same bits in every run, and refuses a straggler policy, which adds in another order.
    connect_timeout: the deadline in seconds for bringing the ranks together.
    peer_timeout: how long another host may give no sign of life, in seconds from 2 to 120. Rank 0's holds for all ranks.
    protocol: "ll", "simple" or "zero_copy", for every call that can go by it; see docs/tuning.md.
    min_channels, max_channels: the bounds of channels, instead of one number. The same on all ranks.
    chunk_bytes: what one message, or one piece of published memory, carries. The same on all ranks.
    tuner_config: a file of rules for the tuner, instead of RINGFOLD_TUNER_CONFIG's. Rank 0's holds for all ranks.
    tuner_plugin: a shared library with NCCL's tuner interface. The same on all ranks.
    """
    native = _native.Communicator.connect(
        rank=rank,
        world_size=world_size,
        address=address,
        secret=secret,
        timeout=timeout,
        connect_timeout=connect_timeout,
        peer_timeout=peer_timeout,
        transport=transport,
        algorithm=algorithm,
        channels=channels,
        straggler=straggler,
        deterministic=deterministic,
        protocol=protocol,
        min_channels=min_channels,
        max_channels=max_channels,
        chunk_bytes=chunk_bytes,
        tuner_config=tuner_config,
        tuner_plugin=tuner_plugin,
    )
    return Communicator(native)


atexit.register(close_all)
