"""Steps of a random program as data, the same on all ranks.

Ranks are ranks of the job; members are ranks of a group. Group 0 is the job. This module does not
need torch.
"""

from dataclasses import dataclass
from typing import TypeAlias

BY_BIT = ("BAND", "BOR", "BXOR")
FLOATS = ("float16", "bfloat16", "float32", "float64")
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
COMPLEX = ("complex32", "complex64", "complex128")
FLOAT8 = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")
AVERAGED = ("int8", "uint8", "int16", "int32", "int64", *FLOATS, *COMPLEX)
"""Types with AVG: torch does not divide the other integers."""


@dataclass(frozen=True)
class Form:
    """A collective in one of torch's spellings."""

    name: str
    blocks: str
    """`whole`: a tensor of the same size for each member; `gathered`: a block of each member;
    `dealt`: a block for each member; `exchanged`: a block for each pair."""
    is_list: bool = False
    """Whether blocks are tensors of a list, and may differ in size."""
    reduces: bool = False
    has_root: bool = False
    parts: int = 1
    """Number of calls that are coalesced into one."""
    is_functional: bool = False
    """Whether the result is a new tensor."""


FORMS = {
    form.name: form
    for form in (
        Form("all_reduce", "whole", reduces=True),
        Form("all_reduce_coalesced", "whole", reduces=True, parts=3),
        Form("managed_all_reduce", "whole", reduces=True, parts=3),
        Form("sparse_all_reduce", "whole", reduces=True),
        Form("broadcast", "whole", has_root=True),
        Form("reduce", "whole", reduces=True, has_root=True),
        Form("all_gather", "gathered", is_list=True),
        Form("all_gather_coalesced", "gathered", is_list=True, parts=2),
        Form("all_gather_into_tensor", "gathered"),
        Form("managed_all_gather", "gathered", parts=3),
        Form("gather", "gathered", is_list=True, has_root=True),
        Form("scatter", "dealt", is_list=True, has_root=True),
        Form("reduce_scatter", "dealt", is_list=True, reduces=True),
        Form("reduce_scatter_tensor", "dealt", reduces=True),
        Form("managed_reduce_scatter", "dealt", reduces=True, parts=3),
        Form("all_to_all", "exchanged", is_list=True),
        Form("all_to_all_single", "exchanged"),
        Form("functional_all_reduce", "whole", reduces=True, is_functional=True),
        Form("functional_broadcast", "whole", has_root=True, is_functional=True),
        Form("functional_all_gather", "gathered", is_functional=True),
        Form("functional_reduce_scatter", "dealt", reduces=True, is_functional=True),
        Form("functional_all_to_all", "exchanged", is_functional=True),
    )
}
EVEN = ("gather", "scatter", "all_gather_coalesced")
"""Forms with lists whose blocks must have equal sizes."""


@dataclass(frozen=True)
class Call:
    """A collective call."""

    group: int
    name: str
    """Name of a `Form`."""
    dtype: str
    counts: tuple[int, ...]
    """Number of elements in each member's block; all equal for calls without blocks."""
    matrix: tuple[tuple[int, ...], ...] = ()
    """Number of elements from the row's member to the column's, if blocks are exchanged."""
    op: str = "SUM"
    factor: float = 1.0
    """Factor of PREMUL_SUM."""
    root: int = 0
    """Root, as a member."""
    salt: int = 0
    """Distinguishes the values of different calls."""
    is_bits: bool = False
    """Whether values are arbitrary bits, for calls that do not compute."""
    layouts: tuple[str, ...] = ("flat",)
    """Memory layouts, assigned in turn to members and tensors."""
    in_place: bool = False
    """Whether a call with blocks has its own block inside the larger tensor."""
    how: str = "now"
    """`now`, or the treatment of the handle: `wait`, `limit`, `poll`, `future`, `callback`,
    `thread`, `drop`."""
    memory: str = "own"
    """`own`; `registered`, if the group has such memory; `either`: each rank draws one of them."""
    mode: str = ""
    """Context of the call, such as a dispatch mode."""

    @property
    def form(self) -> Form:
        """Spelling of the call."""
        return FORMS[self.name]


@dataclass(frozen=True)
class Message:
    """A message between two ranks of the job."""

    source: int
    target: int
    tag: int
    dtype: str
    count: int
    salt: int
    layout: str = "flat"


@dataclass(frozen=True)
class Messages:
    """Simultaneous messages."""

    messages: tuple[Message, ...]
    way: str
    """`started`, `batch`, or `waiting`, in which each call waits."""
    from_any: bool = False
    """Whether receivers name only a tag, and no source."""


@dataclass(frozen=True)
class Objects:
    """A collective of Python objects among all ranks of the job."""

    name: str
    root: int
    salt: int


@dataclass(frozen=True)
class Many:
    """Many small simultaneous calls, while one rank is late."""

    depth: int
    late: int
    late_ms: int
    kind: str
    """`sums`, `broadcasts`, `messages`."""
    drops: bool = False
    """Whether handles are dropped."""


@dataclass(frozen=True)
class Open:
    """Opens a temporary group of these ranks; its number is never 0."""

    group: int
    members: tuple[int, ...]
    way: str
    """`new_group`, `local` (only members call it), or `split`."""


@dataclass(frozen=True)
class Close:
    """Closes a group, with or without calls in progress."""

    group: int
    settles: bool


@dataclass(frozen=True)
class Memory:
    """Registers memory for later calls of the group, in place of the previous memory."""

    group: int
    bytes: int
    is_moved: bool = False
    """Whether existing memory is registered, instead of new memory."""


@dataclass(frozen=True)
class Fork:
    """Forks in another thread, during the following steps; the child uses memory and ends."""

    rank: int
    delay_us: int
    way: str
    """`os` or `multiprocessing`."""
    calls: bool = False
    """Whether the child tries to make a call, which is refused."""


@dataclass(frozen=True)
class Late:
    """Makes a rank late."""

    rank: int
    ms: int


@dataclass(frozen=True)
class Train:
    """Steps of DistributedDataParallel."""

    steps: int
    salt: int
    bucket_bytes: int


@dataclass(frozen=True)
class Fakes:
    """Calls of some ranks on fake tensors; they do nothing."""

    ranks: tuple[int, ...]
    group: int


@dataclass(frozen=True)
class Barrier:
    """A barrier of a group."""

    group: int
    is_monitored: bool = False


@dataclass(frozen=True)
class Restart:
    """Ends the job's group, and makes a new one."""


@dataclass(frozen=True)
class Settle:
    """Ends all calls in progress, on each rank in its own order."""


Step: TypeAlias = (
    Call | Messages | Objects | Many | Open | Close | Memory | Fork | Late | Train | Fakes
    | Barrier | Restart | Settle
)  # fmt: skip


def possible(steps: list[Step], ranks: int) -> list[Step]:
    """Return the steps, except those whose group is never opened because that step was left out."""
    open_: dict[int, tuple[int, ...]] = {0: tuple(range(ranks))}
    kept: list[Step] = []
    for step in steps:
        match step:
            case Open(group, members):
                open_[group] = members
            case Close(group):
                if open_.pop(group, None) is None:
                    continue
            case Restart():
                open_ = {0: open_[0]}
            case Call() | Memory() | Barrier() | Fakes():
                if step.group not in open_:
                    continue
        kept.append(step)
    return kept
