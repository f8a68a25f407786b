"""The peers by name."""

import subprocess
from pathlib import Path

from comparison.frameworks import OPERATORS, Mlx, Operator, gloo
from comparison.libraries import Library, Mpi, StartedByMpi, Ucc, environment, ucc_version

# Peers that are measured within a host only.
WITHIN_HOST = ("vllm", "deepspeed", "mlx", "oneccl")
PEERS = (
    *("impi", "openmpi", "mpich", "gloo"),
    *("openmpi-ring", "impi-ring", "mpich-ring"),
    *WITHIN_HOST,
    "ucc",
)


def peer(name: str, venvs: Path) -> Library:
    """Return the peer with this name, installed if necessary."""
    if name in OPERATORS:
        return Operator(name, venvs)
    if name == "oneccl":
        return StartedByMpi(name, venvs)
    if name == "ucc":
        return Ucc(venvs)
    if name == "mlx":
        return Mlx(venvs)
    return gloo(venvs) if name == "gloo" else Mpi(name, venvs)


def absence(name: str, venvs: Path) -> str:
    """Return why there is no such peer to measure; empty if there is one."""
    try:
        if name != "ucc" or ucc_version(venvs):
            return ""
    except subprocess.CalledProcessError as error:
        return f"its environment cannot be made: {error}"
    prefix = environment(venvs, name)
    return f"there is no UCC in {prefix}; build it with the UCX there, and install it there"
