"""A plugin that has vLLM's ranks on CPUs use ringfold.

vLLM loads it in each of its processes if an installed package names it:

    [project.entry-points."vllm.general_plugins"]
    ringfold = "vllm_ringfold:register"

A program that torchrun starts calls `register()` itself, before it makes an `LLM`.
"""

from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator
from vllm.platforms import current_platform


def register() -> None:
    """Has process groups that are made from now on use ringfold."""
    type(current_platform).dist_backend = "ringfold"
    # Tensor-parallel ranks of one host reduce by vLLM's own shared memory unless this says no.
    CpuCommunicator._all_group_ranks_share_shm_group_name = lambda self: False
