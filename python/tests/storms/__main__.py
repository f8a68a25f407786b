"""Run all storms on all transports in sequence."""

import subprocess
import sys
from pathlib import Path

STORMS = (
    "kills", "stops", "differs", "scribbles", "mixes", "descriptors", "outages", "lanes",
    "torch_programs",
)  # fmt: skip

if __name__ == "__main__":
    programs = [Path(__file__).with_name(f"{name}.py") for name in STORMS]
    sys.exit(
        any(
            [
                subprocess.run([sys.executable, program, *sys.argv[1:]], check=False).returncode
                for program in programs
            ]
        )
    )
