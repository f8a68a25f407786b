"""torch loads the backend, whichever module is imported first."""

import subprocess
import sys

import pytest

# Most are for `check.sh --deep`, because each imports torch in its own process.
ORDERS = [
    "torch",
    "ringfold.torch",
    *(
        pytest.param(name, marks=pytest.mark.deep)
        for name in (
            "torch.distributed", "ringfold", "ringfold.torch.hooks", "ringfold.torch.backend",
        )
    ),
]  # fmt: skip


@pytest.mark.parametrize("first", ORDERS)
def test_whatever_is_imported_first_torch_finds_the_backend(first: str) -> None:
    program = f"import {first}, torch.distributed as dist\n"
    program += "dist.init_process_group('ringfold', store=dist.HashStore(), rank=0, world_size=1)"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
