"""This machine: its cores, and the name of its folder of results."""

import datetime
import os
import re
from pathlib import Path

CPUS = Path("/sys/devices/system/cpu")
# Words in processor names that do not identify the processor.
NOISE = re.compile(r"\(r\)|\(tm\)|@.*|\b(amd|intel|cpu|processor|\d+-core)\b", re.IGNORECASE)


def cores() -> int:
    """Return the number of cores that this process may use; threads of one core count once."""
    threads = [
        CPUS / f"cpu{cpu}" / "topology" / "thread_siblings_list" for cpu in os.sched_getaffinity(0)
    ]
    return len({file.read_text() for file in threads if file.exists()}) or len(threads)


def slug(model: str, cores: int) -> str:
    """Return a processor's name and the number of cores as part of a path."""
    words = re.findall(r"[a-z0-9]+", NOISE.sub(" ", model).lower())
    return "-".join([*(words or ["machine"]), str(cores), "cores"])


def name() -> str:
    """Return this machine's name, with the number of cores that this process may use."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(":")[2] for line in lines if line.startswith("model name")]
    return slug(models[0] if models else "", cores())


def kernel() -> str:
    return os.uname().release


def folder(results: Path) -> Path:
    return results / f"{datetime.date.today().isoformat()}-{name()}"
