"""A rank that runs programs and compares every result with the oracle's.

A rank lives over many programs, in one job. What fails names the program and the step; a program
that does not end within its time writes all stacks and ends the process.
"""

import faulthandler
import gc
import random
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.parallel import DistributedDataParallel

import ringfold
import ringfold.torch
from programs import exchanges, forked, generator, oracle
from programs.calls import MAKERS, surrounding
from programs.cases import Case
from programs.handles import waiting, within
from programs.layouts import Pool, Wrong
from programs.steps import (
    Barrier, Call, Close, Fakes, Fork, Late, Many, Memory, Messages, Objects, Open, Restart,
    Settle, Step, Train, possible,
)  # fmt: skip

PROGRAM_S = 400.0
"""The time limit of a program: longer than the deadline of calls."""
CALL_S = 300.0


class Failed(Exception):
    """A program that failed on this rank; the arguments are its number, the kind, the text, and
    when that was.
    """

    @property
    def index(self) -> int:
        """The program's number."""
        return int(self.args[0])

    @property
    def kind(self) -> str:
        """`Wrong`, or the error's class."""
        return str(self.args[1])

    @property
    def at_s(self) -> float:
        """When it failed, by the monotonic clock of all processes."""
        return float(self.args[3])

    def __str__(self) -> str:
        return str(self.args[2])


@dataclass
class Group:
    """An open group."""

    members: tuple[int, ...]
    way: str
    pg: Any
    """`None` for other ranks."""
    pool: Pool | None = None


@dataclass
class Pending:
    """A call under way."""

    group: int
    check: Callable[[], None]
    wait: Callable[[], None] | None
    """`None` if the handle was dropped."""
    keep: list[Any] = field(default_factory=list)


class Rank:
    """This process' side of a job that runs programs."""

    def __init__(
        self,
        rank: int,
        ranks: int,
        folder: str,
        deep: float = generator.DEEP,
        features: frozenset[str] = generator.ON,
    ) -> None:
        self.rank, self.ranks, self.folder = rank, ranks, folder
        self.deep, self.features = deep, features
        self.joined = self.splits = 0
        self.random = random.Random()
        self.groups: dict[int, Group] = {}
        self.pending: list[Pending] = []
        self.children: list[forked.Child] = []
        self.start()
        forked.prepare()

    def start(self) -> None:
        """Join a job."""
        dist.init_process_group(
            "ringfold",
            init_method=f"file://{self.folder}/store{self.joined}",
            rank=self.rank,
            world_size=self.ranks,
            timeout=timedelta(seconds=CALL_S),
        )
        self.joined += 1
        world = dist.distributed_c10d._get_default_group()
        self.groups = {0: Group(tuple(range(self.ranks)), "job", world)}

    def run(self, seed: int, index: int, keep: Sequence[int] | None = None) -> None:
        """Run one program, or only these steps of it; raise `Failed`."""
        steps = generator.drawn(seed, index, self.ranks, self.deep, self.features)
        if keep is not None:
            steps = possible([steps[each] for each in keep], self.ranks)
        self.run_steps(steps, seed, index)

    def run_steps(self, steps: list[Step], seed: int, index: int) -> None:
        """Run the steps of a program."""
        self.random.seed(f"{seed}/{index}/{self.rank}")
        faulthandler.dump_traceback_later(PROGRAM_S, exit=True)
        step: Step = Settle()
        try:
            for step in steps:
                self.do(step)
            self.end()
        except Exception as error:
            text = f"program {index} of seed {seed} on {self.ranks} ranks, rank {self.rank}, in "
            text += f"{step}: {type(error).__name__}: {error}"
            raise Failed(index, type(error).__name__, text, time.monotonic()) from error
        finally:
            faulthandler.cancel_dump_traceback_later()

    def end(self) -> None:
        """Leave nothing of a program behind."""
        self.settle()
        for number in sorted(self.groups.keys() - {0}):
            self.close(Close(number, True))
        dist.barrier()
        self.drop_pool(self.groups[0])

    def do(self, step: Step) -> None:
        """Do one step, in which this rank may have no part."""
        match step:
            case Call():
                self.call(step)
            case Messages():
                self.pending += [
                    Pending(0, check, wait) for check, wait in exchanges.messages(step, self.rank)
                ]
            case Objects():
                exchanges.objects(step, self.rank, self.ranks)
            case Many():
                exchanges.many(step, self.rank, self.ranks)
            case Open():
                self.open(step)
            case Close():
                self.close(step)
            case Memory():
                self.memory(step)
            case Fork(rank=self.rank):
                self.children.append(forked.Child(step, self.registered))
            case Late(rank=self.rank):
                time.sleep(step.ms / 1000)
            case Train():
                self.train(step)
            case Fakes():
                self.fakes(step)
            case Barrier():
                self.barrier(step)
            case Restart():
                self.restart()
            case Settle():
                self.settle()

    def call(self, step: Call) -> None:
        """Make a call, and check it if it waits."""
        group = self.groups[step.group]
        if group.pg is None:
            return
        me = group.members.index(self.rank)
        is_seen = "calls seen by modes" in self.features and step.name != "sparse_all_reduce"
        with surrounding(step.mode if step.mode == "inference" else "", False):
            case = Case(step, me, group.pool if self.uses_pool(step) else None)
        with surrounding(step.mode, is_seen):
            made = MAKERS[step.name](step, group.pg, case.given, case.out, step.how != "now")
        if step.how == "now":
            case.check(made)
            return
        wait: Callable[[], None] | None = None
        if step.form.is_functional:
            # The result waits by itself.
            wait = self.nothing
        elif step.how != "drop" or not self.may_drop(step):
            wait = waiting(step.how, made, case.out)
        self.pending.append(Pending(step.group, lambda: case.check(made), wait, [case]))

    def may_drop(self, step: Call) -> bool:
        """Whether results arrive without the handle."""
        if "dropped copies" in self.features:
            return True
        return step.layouts == ("flat",) and step.op != "AVG" and not step.form.is_list

    def nothing(self) -> None:
        """Wait for what waits by itself."""

    def uses_pool(self, step: Call) -> bool:
        return step.memory == "registered" or (
            step.memory == "either" and self.random.random() < 0.5
        )

    def registered(self) -> list[torch.Tensor]:
        """All registered memory, and what is being registered."""
        return [group.pool.memory for group in list(self.groups.values()) if group.pool]

    def settle(self, of: int | None = None, children: bool = True) -> None:
        """Wait for all calls under way, or those of a group, and check them; the same for forked
        children.
        """
        mine = [each for each in self.pending if of is None or each.group == of]
        self.pending = [each for each in self.pending if of is not None and each.group != of]
        self.random.shuffle(mine)
        for each in mine:
            if each.wait is not None:
                each.wait()
                each.check()
        dropped = [each for each in mine if each.wait is None]
        for group in sorted({each.group for each in dropped}):
            self.groups[group].pg.barrier().wait()
        for each in dropped:
            within(each.check)
        if of is None:
            if children:
                self.await_children()
            for one in self.groups.values():
                if one.pool:
                    one.pool.reuse()

    def open(self, step: Open) -> None:
        """Make a group."""
        pg = None
        if step.way == "new_group":
            pg = dist.new_group(list(step.members), timeout=timedelta(seconds=CALL_S))
        elif step.way == "split":
            self.splits += 1
            pg = self.groups[0].pg.split_group(
                list(step.members),
                timedelta(seconds=CALL_S),
                None,
                f"split {self.joined}.{self.splits}",
                "of a moment",
            )
        elif self.rank in step.members:
            pg = dist.new_group(
                list(step.members),
                timeout=timedelta(seconds=CALL_S),
                use_local_synchronization=True,
            )
        is_member = self.rank in step.members
        self.groups[step.group] = Group(step.members, step.way, pg if is_member else None)

    def close(self, step: Close) -> None:
        """End a group."""
        if step.settles:
            self.settle(step.group)
        group = self.groups.pop(step.group)
        if group.pg is None:
            return
        self.drop_pool(group)
        if group.way == "split":
            group.pg.shutdown()
        else:
            dist.destroy_process_group(group.pg)
        mine = [each for each in self.pending if each.group == step.group]
        self.pending = [each for each in self.pending if each.group != step.group]
        for each in mine:
            if each.wait is not None:
                each.wait()
            within(each.check)

    def await_children(self) -> None:
        """Wait for all forked children, and check them."""
        children, self.children = self.children, []
        for child in children:
            child.check()

    def drop_pool(self, group: Group) -> None:
        """End a group's registered memory."""
        if group.pool is None:
            return
        if "forks that register" not in self.features:
            self.await_children()
        group.pool.close()
        group.pool = None

    def memory(self, step: Memory) -> None:
        """Make registered memory, in place of what a group has."""
        group = self.groups[step.group]
        self.settle(children="forks that register" not in self.features)
        if group.pg is None:
            return
        self.drop_pool(group)
        if step.is_moved:
            group.pool = Pool(torch.full((step.bytes,), 7, dtype=torch.uint8))
            group.pool.keep = ringfold.torch.register(group.pool.memory, group.pg)
            due = 7
        else:
            group.pool = Pool(
                ringfold.torch.empty(step.bytes, dtype=torch.uint8, group=group.pg)
            )
            due = 0
        if not bool((group.pool.memory == due).all()):
            raise Wrong(f"new registered memory is not {due}")

    def train(self, step: Train) -> None:
        """Train, and compare the parameters."""
        model = oracle.network()
        parallel = DistributedDataParallel(model, bucket_cap_mb=step.bucket_bytes / 2**20)
        for number in range(step.steps):
            parallel.zero_grad()
            oracle.loss(parallel, number, step.salt, self.rank).backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= parameter.grad
        due = oracle.weights_after(step.steps, step.salt, self.ranks)
        for found, right in zip(model.parameters(), due, strict=True):
            # torch multiplies by an inexact third.
            if not torch.allclose(found, right, rtol=1e-12, atol=0):
                raise Wrong(f"parameters {found.tolist()} for {right.tolist()}")

    def fakes(self, step: Fakes) -> None:
        """Calls on tensors without memory, which nothing else learns of."""
        pg = self.groups[step.group].pg
        if pg is None or self.rank not in step.ranks:
            return
        with FakeTensorMode():
            x = torch.ones(1000)
            parts = [torch.empty(1000) for _ in range(pg.size())]
            dist.all_reduce(x, group=pg)
            dist.all_reduce(x.view(10, 100).t(), group=pg, async_op=True).wait()
            dist.all_gather(parts, x, group=pg)
            dist.broadcast(x, group=pg, group_src=0)

    def barrier(self, step: Barrier) -> None:
        """Meet."""
        pg = self.groups[step.group].pg
        if step.is_monitored:
            ringfold.torch.monitored_barrier()
        elif pg is not None:
            pg.barrier().wait()

    def restart(self) -> None:
        """Leave the job and join another."""
        self.settle()
        for number in sorted(self.groups.keys() - {0}):
            self.close(Close(number, True))
        self.drop_pool(self.groups[0])
        dist.barrier()
        dist.destroy_process_group()
        gc.collect()
        self.start()
