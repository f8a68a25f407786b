"""What the results' folder is called: the day and the machine."""

import datetime
import os
import re
from pathlib import Path

# What processors' names say besides which they are.
NOISE = re.compile(r"\(r\)|\(tm\)|@.*|\b(amd|intel|cpu|processor|\d+-core)\b", re.IGNORECASE)


def slug(model: str, cores: int) -> str:
    """A processor's name and the number of cores as a part of a path."""
    words = re.findall(r"[a-z0-9]+", NOISE.sub(" ", model).lower())
    return "-".join([*(words or ["machine"]), str(cores), "cores"])


def name() -> str:
    """This machine's, as far as this process may use it."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(":")[2] for line in lines if line.startswith("model name")]
    return slug(models[0] if models else "", len(os.sched_getaffinity(0)))


def folder(results: Path) -> Path:
    return results / f"{datetime.date.today().isoformat()}-{name()}"
