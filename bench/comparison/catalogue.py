"""The peers by name."""

from pathlib import Path

from comparison.frameworks import OPERATORS, Mlx, Operator, gloo
from comparison.libraries import Library, Mpi, OneCcl

# Peers that are measured within a host only.
WITHIN_HOST = ("vllm", "deepspeed", "mlx", "oneccl")
PEERS = (
    *("impi", "openmpi", "mpich", "gloo"),
    *("openmpi-ring", "impi-ring", "mpich-ring"),
    *WITHIN_HOST,
)


def peer(name: str, venvs: Path) -> Library:
    """Return the peer with this name, installed if necessary."""
    if name in OPERATORS:
        return Operator(name, venvs)
    if name == "oneccl":
        return OneCcl(name, venvs)
    if name == "mlx":
        return Mlx(venvs)
    return gloo(venvs) if name == "gloo" else Mpi(name, venvs)
