"""A plugin that makes vLLM's CPU ranks use ringfold.

vLLM loads the plugin in each of its processes if an installed package names it:

    [project.entry-points."vllm.general_plugins"]
    ringfold = "vllm_ringfold:register"

A program started by torchrun calls `register()` itself, before it makes an `LLM`.
"""

from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator
from vllm.platforms import current_platform


def register() -> None:
    """Make all process groups from now on use ringfold."""
    type(current_platform).dist_backend = "ringfold"
    # Without this, tensor-parallel ranks on one host reduce through vLLM's own shared memory.
    CpuCommunicator._all_group_ranks_share_shm_group_name = lambda self: False
