"""Contexts in which a communicator may be used: handlers, threads, callbacks, forks, at exit.

docs/reference/contexts.md has the guarantees. Each scenario splits its own communicators from the
job's. Rank 0 waits in one of them, and meanwhile acts in the context under test. Rank 1 joins the
wait when rank 0 asks it to over the job's communicator.
"""

import atexit
import gc
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import ringfold

COUNT, LARGE = 5, 300_000
# Longer than any wait that does not hang. Unlike the job's watchdog, it shows which wait hangs.
DEADLINE_S = 60.0


class Scene:
    """The communicators of one scenario, and the objects that depend on them."""

    def __init__(self, job: ringfold.Communicator, act: str = "") -> None:
        part = job.split(0)
        assert part is not None
        self.job, self.part = job, part
        self.others = [job.split(0)] if "another" in act else []
        has_memory = "registration" in act or not act
        self.memory = [part.empty(1000)] if has_memory else []
        self.registrations = [part.register(np.ones(5000))] if has_memory else []
        self.works: list[ringfold.Work] = []

    @property
    def other(self) -> ringfold.Communicator:
        """Another communicator, for the acts whose names contain "another"."""
        assert self.others[0] is not None
        return self.others[0]

    def let_come(self) -> None:
        """Let the other rank continue."""
        self.job.send(np.zeros(1), 1)

    def come(self) -> None:
        """Wait until the other rank lets this one continue."""
        self.job.recv(np.zeros(1), 0)

    def start(self) -> ringfold.Work:
        self.works.append(self.part.all_reduce(np.full(COUNT, self.part.rank + 1.0), async_=True))
        return self.works[-1]

    def collect(self) -> None:
        """Have the garbage collector free a registration and its memory."""
        cycle: list[Any] = [self.memory.pop(), self.registrations.pop()]
        cycle.append(cycle)
        del cycle
        gc.collect()

    def end(self) -> str:
        """Finish all works, close the communicators, and return the state of the tested one."""
        endings = [ending(work.wait) for work in self.works]
        endings.append(ending(self.part.barrier))
        for communicator in (self.part, *self.others):
            if communicator is not None:
                communicator.close()
        return next((ending for ending in endings if ending != "ok"), "ok")


Act = Callable[[Scene], object]


def ending(call: Callable[[], object]) -> str:
    """Return the outcome of `call`: `ok`, or the class of its error and the rank it names."""
    try:
        call()
    except ringfold.RingfoldError as error:
        rank = getattr(error, "rank", None)
        return type(error).__name__ if rank is None else f"{type(error).__name__} {rank}"
    except KeyboardInterrupt as error:
        return type(error).__name__
    return "ok"


def summed(comm: ringfold.Communicator, count: int = COUNT) -> None:
    assert (comm.all_reduce(np.full(count, comm.rank + 1.0)) == 3.0).all()


def summed_later(comm: ringfold.Communicator, timeout: float | None) -> None:
    work = comm.all_reduce(np.full(COUNT, comm.rank + 1.0), async_=True)
    assert (work.wait(timeout) == 3.0).all()


def summed_in_group(comm: ringfold.Communicator) -> None:
    with comm.group():
        total = comm.all_reduce(np.full(COUNT, comm.rank + 1.0))
    assert (total.result() == 3.0).all()


def summed_in_part(comm: ringfold.Communicator) -> None:
    part = comm.split(0)
    assert part is not None
    summed(part)
    part.close()


def passed_on(comm: ringfold.Communicator) -> None:
    if comm.rank == 1:
        comm.send(np.ones(3), 0)
    else:
        assert (comm.recv(np.zeros(3), 1) == 1.0).all()


def close_with_work(scene: Scene) -> None:
    scene.start()
    if scene.part.rank == 0:
        scene.part.close()


def fork(comm: ringfold.Communicator) -> None:
    child = os.fork()
    if child == 0:
        os._exit(ending(comm.barrier) != "UnsupportedError")
    assert os.waitpid(child, 0)[1] == 0


def join_alone() -> None:
    with ringfold.init(0, 1) as alone:
        assert alone.all_reduce(np.ones(1))[0] == 1.0


# The communicator's state after an act: on the rank that acted, and on the other rank.
FINE, ABORTED, CLOSED = (
    ("ok", "ok"),
    ("AbortedError 0", "AbortedError 0"),
    ("ClosedError", "PeerFailedError 0"),
)

# Acts of a single rank.
OWN: dict[str, tuple[Act, tuple[str, str]]] = {
    "abort": (lambda scene: scene.part.abort("enough"), ABORTED),
    "close": (lambda scene: scene.part.close(), CLOSED),
    "stats": (lambda scene: scene.part.stats(), FINE),
    "reset_stats": (lambda scene: scene.part.reset_stats(), FINE),
    "standing": (lambda scene: scene.part.standing(), FINE),
    "weights": (lambda scene: scene.part.weights, FINE),
    "fork": (lambda scene: fork(scene.part), FINE),
    "init": (lambda scene: join_alone(), FINE),
    "abort another": (lambda scene: scene.other.abort("enough"), FINE),
    "close another": (lambda scene: scene.other.close(), FINE),
    # These wait for calls in progress.
    "close registration": (lambda scene: scene.registrations[0].close(), FINE),
    "collect registration": (lambda scene: scene.collect(), FINE),
}

# Acts that all ranks must take part in.
JOINT: dict[str, Act] = {
    "start": lambda scene: scene.start(),
    "call": lambda scene: summed(scene.part),
    "large call": lambda scene: summed(scene.part, LARGE),
    "work": lambda scene: summed_later(scene.part, None),
    "group": lambda scene: summed_in_group(scene.part),
    "call of another": lambda scene: summed(scene.other),
    "message": lambda scene: passed_on(scene.part),
    "empty": lambda scene: scene.part.empty(10),
    "register": lambda scene: scene.registrations.append(scene.part.register(np.ones(9000))),
    "rebalance": lambda scene: scene.part.rebalance(),
    "split": lambda scene: summed_in_part(scene.part),
}

# Waits in a call, whose progress `standing` shows; OTHERS has all other waits.
CALLS: dict[str, Act] = {
    "call": lambda scene: summed(scene.part),
    "large call": lambda scene: summed(scene.part, LARGE),
    "work": lambda scene: summed_later(scene.part, None),
    "work for a time": lambda scene: summed_later(scene.part, DEADLINE_S),
}
OTHERS: dict[str, Act] = {
    "message": lambda scene: passed_on(scene.part),
    "empty": lambda scene: scene.part.empty(10),
    "split": lambda scene: summed_in_part(scene.part),
    "close": close_with_work,
}


def wait_until_in_call(comm: ringfold.Communicator) -> None:
    while (own := comm.standing()[comm.rank]) is None or own.begun == own.finished:
        time.sleep(0.002)


def in_handler(scene: Scene, act: Callable[[], None], is_in_call: bool) -> Callable[[], None]:
    """Make a signal handler of this thread run `act`; return a function that waits until it has."""
    signal.signal(signal.SIGUSR2, lambda *_: act())
    if not is_in_call:
        signal.signal(signal.SIGALRM, lambda *_: act())
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        return lambda: None
    this = threading.get_ident()

    def send() -> None:
        wait_until_in_call(scene.part)
        signal.pthread_kill(this, signal.SIGUSR2)

    sender = threading.Thread(target=send)
    sender.start()
    return sender.join


def in_thread(scene: Scene, act: Callable[[], None], is_in_call: bool) -> Callable[[], None]:
    """Make another thread run `act`; return a function that waits until it has."""

    def run() -> None:
        wait_until_in_call(scene.part) if is_in_call else time.sleep(0.05)
        act()

    thread = threading.Thread(target=run)
    thread.start()
    return thread.join


def in_callback(scene: Scene, act: Callable[[], None], is_in_call: bool) -> Callable[[], None]:
    """Make the library's notifier thread run `act`; return a function that waits until it has."""
    told = threading.Event()

    def run() -> None:
        wait_until_in_call(scene.part) if is_in_call else time.sleep(0.05)
        act()
        told.set()

    # Completes only when rank 1 answers the request below.
    scene.job.recv(np.zeros(1), 1, tag=1, async_=True).when_done(run)
    scene.job.send(np.zeros(1), 1, tag=2)
    return lambda: assert_told(told)


def assert_told(told: threading.Event) -> None:
    assert told.wait(DEADLINE_S)


def play(job: ringfold.Communicator, context: str, name: str) -> list[str]:
    """Run a scenario; return this rank's outcomes of the wait and the act, and the final state."""
    act_name, wait_name = name.split(" in ")
    wait = CALLS.get(wait_name) or OTHERS[wait_name]
    act = OWN[act_name][0] if act_name in OWN else JOINT[act_name]
    scene = Scene(job, act_name)
    if job.rank == 1:
        if context == "callback":
            job.recv(np.zeros(1), 0, tag=2)
            job.send(np.zeros(1), 0, tag=1)
        scene.come()
        return [
            ending(lambda: wait(scene)),
            ending(lambda: act(scene)) if act_name in JOINT else "",
            scene.end(),
        ]
    acted = []

    def run() -> None:
        # A call whose data has arrived succeeds, so an act that ends the call must come first.
        ends_call = act_name == "abort" or (act_name == "close" and context == "handler")
        if not ends_call:
            scene.let_come()
        acted.append(ending(lambda: act(scene)))
        if ends_call:
            scene.let_come()

    contexts = {"handler": in_handler, "thread": in_thread, "callback": in_callback}
    finish = contexts[context](scene, run, wait_name in CALLS)
    waited = ending(lambda: wait(scene))
    finish()
    return [waited, *acted, scene.end()]


def act_while_waiting(job: ringfold.Communicator, context: str) -> dict[str, list[str]]:
    """Run every act while rank 0 waits in a call, and some acts in every other wait."""
    pairs = [(act, "call") for act in (*OWN, *JOINT)]
    pairs += [(act, "large call") for act in ("stats", "abort", "close")]
    if context == "handler":
        pairs += [(act, wait) for act in ("stats", "abort", "close") for wait in CALLS]
        pairs += [(act, wait) for act in ("stats", "fork") for wait in OTHERS]
        pairs += [("abort", wait) for wait in ("message", "close")]
    names = dict.fromkeys(f"{act} in {wait}" for act, wait in pairs)
    return {name: play(job, context, name) for name in names}


@pytest.mark.parametrize("context", ["handler", "thread", "callback"])
def test_a_communicator_is_used_while_a_thread_waits_in_it(jobs: Any, context: str) -> None:
    own, other = jobs(act_while_waiting, 2, {"timeout": DEADLINE_S}, context=context).results()
    wrong = {}
    for name in own:
        act, wait = name.split(" in ")
        mine, theirs = OWN[act][1] if act in OWN else FINE
        if wait == "close" and act != "abort":
            mine, theirs = CLOSED
        # Closing waits for calls, except for a call that waits for the handler to return.
        ends_call = act == "abort" or context == "handler"
        waited = "ok" if wait == "close" or not ends_call else mine
        if own[name] != [waited, "ok", mine] or other[name][2] != theirs:
            wrong[name] = own[name], other[name]
    assert not wrong


# Acts of a forked child on inherited objects.
REFUSED: dict[str, Act] = {
    "call": lambda scene: summed(scene.part),
    "start": lambda scene: scene.start(),
    "group": lambda scene: summed_in_group(scene.part),
    "message": lambda scene: scene.part.send(np.ones(1), 0),
    "empty": lambda scene: scene.part.empty(10),
    "register": lambda scene: scene.part.register(np.ones(9000)),
    "split": lambda scene: scene.part.split(0),
    "rebalance": lambda scene: scene.part.rebalance(),
    "standing": lambda scene: scene.part.standing(),
    "stats": lambda scene: scene.part.stats(),
    "abort": lambda scene: scene.part.abort(),
    "wait": lambda scene: scene.works[0].wait(),
    "done": lambda scene: scene.works[0].done(),
    "when_done": lambda scene: scene.works[0].when_done(lambda: None),
}
HARMLESS: dict[str, Act] = {
    "read memory": lambda scene: scene.memory[0].sum() + scene.registrations[0].array.sum(),
    "write memory": lambda scene: scene.memory[0].fill(7),
    "close registration": lambda scene: scene.registrations[0].close(),
    "collect registration": lambda scene: scene.collect(),
    "forget": lambda scene: scene.works.clear(),
    "close": lambda scene: scene.part.close(),
    "init": lambda scene: join_alone(),
}


def tell_of_child(scene: Scene, answers: Any) -> None:
    """Record the outcome of every act, in a forked child."""
    found = {}
    for name, act in {**REFUSED, **HARMLESS}.items():
        found[name] = ending(partial(act, scene))
    answers.put(found)


def fork_everywhere(job: ringfold.Communicator) -> Any:
    """Fork while another thread waits in a call: from this thread, and from a third one."""
    scene = Scene(job)
    if job.rank == 1:
        scene.come()
        summed(scene.part)
        scene.start()
        return scene.end()
    scene.memory[0][:] = 1
    waiting = threading.Thread(target=lambda: summed(scene.part))
    waiting.start()
    wait_until_in_call(scene.part)
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    children = [context.Process(target=tell_of_child, args=(scene, answers)) for _ in range(2)]
    scene.start()
    children[0].start()
    starter = threading.Thread(target=children[1].start)
    starter.start()
    starter.join()
    found = [answers.get() for _ in children]
    for child in children:
        child.join()
    is_untouched = bool((scene.memory[0] == 1).all())
    scene.let_come()
    waiting.join()
    return found, [child.exitcode for child in children], is_untouched, scene.end()


def test_a_forked_child_is_refused_and_harms_nobody(jobs: Any) -> None:
    (found, codes, is_untouched, own), other = jobs(fork_everywhere, 2).results()
    expected = {**dict.fromkeys(REFUSED, "UnsupportedError"), **dict.fromkeys(HARMLESS, "ok")}
    assert found == [expected, expected]
    assert codes == [0, 0] and is_untouched
    assert (own, other) == ("ok", "ok")


def use_at_exit(job: ringfold.Communicator, ends_hard: bool) -> None:
    """Register a handler after ringfold's, so that it runs before ringfold's."""

    def last() -> None:
        print(ending(lambda: summed(job)), flush=True)
        if ends_hard and job.rank == 0:
            os._exit(7)
        print(ending(job.barrier), flush=True)

    atexit.register(last)
    raise SystemExit(0)


@pytest.mark.parametrize("ends_hard", [False, True])
def test_calls_are_made_until_the_interpreter_ends(jobs: Any, ends_hard: bool) -> None:
    job = jobs(use_at_exit, 2, ends_hard=ends_hard)
    assert [job.status(rank) for rank in range(2)] == [7 if ends_hard else 0, 0]
    endings = [line for line in job.log(1).splitlines() if " WARN " not in line]
    assert endings == ["ok", "PeerFailedError 0" if ends_hard else "ok"]
