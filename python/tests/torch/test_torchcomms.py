"""ringfold in programs that use torchcomms, which is replaced by a stand-in here.

The stand-in has the names that torch imports from torchcomms. Its `new_comm` knows no backend, and
prints those that it is asked for.
"""

import os
import sys
from pathlib import Path

import launching
import pytest

WATCHDOG_S = 120.0

STAND_IN = {
    "__init__.py": """
from torchcomms._comms import new_comm
def is_backend_built(backend):
    return backend in ("gloo", "nccl")
""",
    "_comms.py": """
class _BackendWrapper: pass
def _is_backend_registered(backend):
    return False
def new_comm(backend, device, **options):
    print("asked for", backend, flush=True)
    raise RuntimeError(f"no backend {backend}")
""",
    "hooks.py": "class FlightRecorderHook:\n    def __init__(self, max_entries): pass\n",
}

PROGRAM = """
import sys, torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
assert dist.distributed_c10d._use_torchcomms_enabled()
default, other = sys.argv[1:]
dist.init_process_group(default, store=dist.HashStore(), rank=0, world_size=1)
mesh = init_device_mesh("cpu", (1,)).get_group()
groups = [dist.group.WORLD, mesh, dist.new_group(), dist.new_group(backend=other)]
for group in groups:
    parts = [torch.ones(2)]
    dist.gather(parts[0].clone(), parts, group=group)
    print(type(group).__name__, dist.get_backend(group), flush=True)
dist.destroy_process_group()
"""


def run(folder: Path, default: str, other: str, **variables: str) -> tuple[int, list[str]]:
    """Run a program of one rank with groups of two backends; return its status and output."""
    package = folder / "torchcomms"
    package.mkdir()
    for name, text in STAND_IN.items():
        (package / name).write_text(text)
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    variables |= {"PYTHONPATH": path, "TORCH_DISTRIBUTED_USE_TORCHCOMMS": "1"}
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, default, other]
    status, output = launching.finish(command, WATCHDOG_S, env=os.environ | variables)
    return status, output.splitlines()


def test_groups_of_ringfold_are_made_without_torchcomms(tmp_path: Path) -> None:
    status, output = run(tmp_path, "ringfold", "ringfold")
    assert status == 0, output
    assert output == ["RingfoldProcessGroup ringfold"] * 4


def test_groups_that_replace_gloo_are_made_without_torchcomms(tmp_path: Path) -> None:
    status, output = run(tmp_path, "gloo", "gloo", RINGFOLD_TORCH_REPLACE="gloo")
    assert status == 0, output
    assert [line for line in output if "Group" in line] == ["RingfoldProcessGroup gloo"] * 4


@pytest.mark.parametrize("groups", [("gloo", "ringfold"), ("ringfold", "gloo")])
def test_other_groups_are_still_made_by_torchcomms(
    tmp_path: Path, groups: tuple[str, str]
) -> None:
    status, output = run(tmp_path, *groups)
    assert status == 1 and "asked for gloo" in output, output
    assert "RuntimeError: no backend gloo" in output[-1], output
