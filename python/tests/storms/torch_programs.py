"""Random programs over torch: every result is right, and every program ends.

A round is a job of two to four ranks that runs many programs. A failing program is shortened as
long as it still fails; `TEST_PROGRAM=...` with the round's seed repeats it alone.
"""

import gc
import importlib
import os
import random
import sys
import tempfile
from collections.abc import Sequence

import harness
import storm
from harness import ROOT, Ending, Job, Place
from storm import Outcome, Storm

sys.path.append(str(ROOT / "python/tests/torch"))

import torch
import torch.distributed as dist
from programs import generator
from programs.runner import PROGRAM_S, Failed, Rank
from programs.shortest import shortest
from rank_server import LAZY_MODULES

PROGRAMS = 60
"""Number of programs in a round."""
DEEP = 0.1
"""Share of the greatest depths among steps of many calls."""
ROUND_S = 1800.0
"""Time limit of a round; each of its programs has its own."""
TRIES_MAX = 40
TELLING = ("crash", "hang", "panic", "Wrong", "CorruptError")
CONSEQUENCES = ("PeerFailedError", "AbortedError")
"""Errors of other ranks that follow from a failure."""


def prepare() -> None:
    """Import, in the forking process, all modules that torch imports on first use."""
    torch.set_num_threads(1)
    for module in LAZY_MODULES:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()


def use(transport: str) -> None:
    """Make torch's groups in a forked rank use a transport."""
    # A forked process replaces torch's thread pool on first use. If two threads are the first users
    # at the same time, such as those of a backward pass, they find no pool.
    torch.set_num_threads(1)
    if transport != "hosts":
        os.environ["RINGFOLD_TRANSPORT"] = transport


def program(
    me: harness.Rank, folder: str, seed: int, indexes: Sequence[int], keep: list[int] | None
) -> None:
    """Run a rank's programs."""
    use(me.place.transport)
    error: Exception | None = None
    index = None
    try:
        rank = Rank(me.rank, me.ranks, folder, deep=DEEP)
        for index in indexes:
            rank.run(seed, index, keep)
            me.say("right")
        dist.destroy_process_group()
    except Exception as raised:
        error = raised
    kind = error.kind if isinstance(error, Failed) else "ok" if error is None else "Error"
    me.say("end", kind=kind, blamed=(), text=str(error or "")[:3000], index=index)


def ended(
    place: Place, ranks: int, seed: int, indexes: Sequence[int], keep: list[int] | None = None
) -> tuple[int, list[Ending], int | None]:
    """Run programs in one job; return the number of right ones, outcomes, and the failed one."""
    with tempfile.TemporaryDirectory() as folder:
        with Job(
            lambda me: program(me, folder, seed, indexes, keep), ranks, place, seed
        ) as job:
            endings = job.finish(ROUND_S)
            right = [sum(event["event"] == "right" for event in said) for said in job.events]
    number = min(right)
    failed = None if number == len(indexes) else indexes[number]
    return number, endings, failed


def telling(endings: list[Ending]) -> Ending | None:
    """Return the most informative failure: a dead or hanging process, wrong data, or the first."""
    bad = [ending for ending in endings if ending.kind != "ok"]
    return min(
        bad,
        key=lambda one: (one.kind not in TELLING, one.kind in CONSEQUENCES, one.at),
        default=None,
    )


def shown(place: Place, ranks: int, seed: int, index: int) -> str:
    """Return a failing program, as short as it still fails."""
    steps = generator.drawn(seed, index, ranks, deep=DEEP)

    def fails(keep: list[int]) -> bool:
        return telling(ended(place, ranks, seed, [index], keep)[1]) is not None

    kept = list(range(len(steps)))
    if not fails(kept):
        return "which does not fail when it is repeated alone"
    kept = shortest(kept, fails, TRIES_MAX)
    return "as short as it fails:\n" + "\n".join(f"  {each}: {steps[each]}" for each in kept)


def round_(seed: int, place: Place) -> Outcome:
    """Run one job."""
    ranks = random.Random(seed).choice((2, 3, 4))
    only = os.environ.get("TEST_PROGRAM")
    indexes = range(PROGRAMS) if only is None else [int(only)]
    right, endings, failed = ended(place, ranks, seed, indexes)
    outcome = Outcome(right, [(f"{ranks} ranks: {ending.kind}", None) for ending in endings])
    worst = telling(endings)
    if worst is not None:
        text = f"{worst}"
        if failed is not None:
            text += f"\nTEST_PROGRAM={failed}, {shown(place, ranks, seed, failed)}"
        outcome.violations.append(text)
    return outcome


if __name__ == "__main__":
    assert ROUND_S > PROGRAM_S
    prepare()
    storm.main(Storm("torch_programs", "programs", round_, 60))
