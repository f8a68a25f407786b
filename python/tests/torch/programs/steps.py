"""The steps of a random program as data, the same on all ranks.

Ranks are those of the job; members are ranks of a group. Group 0 is the job. Nothing here needs
torch.
"""

from dataclasses import dataclass
from typing import TypeAlias

BY_BIT = ("BAND", "BOR", "BXOR")
FLOATS = ("float16", "bfloat16", "float32", "float64")
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
COMPLEX = ("complex32", "complex64", "complex128")
FLOAT8 = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")
AVERAGED = ("int8", "uint8", "int16", "int32", "int64", *FLOATS, *COMPLEX)
"""The types with AVG: torch does not divide the other integers."""


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
    """The number of such calls that are coalesced to one."""
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
"""Lists whose blocks must be equal."""


@dataclass(frozen=True)
class Call:
    """A collective call."""

    group: int
    name: str
    """Of a `Form`."""
    dtype: str
    counts: tuple[int, ...]
    """Elements of each member's block, all equal for calls without blocks."""
    matrix: tuple[tuple[int, ...], ...] = ()
    """Elements that the row's member sends to the column's, if blocks are exchanged."""
    op: str = "SUM"
    factor: float = 1.0
    """Of PREMUL_SUM."""
    root: int = 0
    """A member."""
    salt: int = 0
    """Distinguishes the values of one call from another's."""
    is_bits: bool = False
    """Whether values are arbitrary bits, for calls that do not compute."""
    layouts: tuple[str, ...] = ("flat",)
    """How tensors lie in memory: each member and tensor takes the next one."""
    in_place: bool = False
    """Whether a call with blocks gets or leaves its own block within the larger tensor."""
    how: str = "now"
    """`now`, or how the handle is treated: `wait`, `limit`, `poll`, `future`, `callback`, `thread`,
    `drop`."""
    memory: str = "own"
    """`own`, or `registered` if the group has such memory; drawn by each rank if `either`."""
    mode: str = ""
    """What surrounds the call, such as a dispatch mode."""

    @property
    def form(self) -> Form:
        """The call's spelling."""
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
    """Messages that are under way at once."""

    messages: tuple[Message, ...]
    way: str
    """`started`, `batch`, or `waiting`, where each call waits."""
    from_any: bool = False
    """Whether receivers name no source, but a tag."""


@dataclass(frozen=True)
class Objects:
    """A collective of Python objects among all ranks of the job."""

    name: str
    root: int
    salt: int


@dataclass(frozen=True)
class Many:
    """Very many small calls under way at once, while one rank is late."""

    depth: int
    late: int
    late_ms: int
    kind: str
    """`sums`, `broadcasts`, `messages`."""
    drops: bool = False
    """Whether handles are dropped."""


@dataclass(frozen=True)
class Open:
    """A group of a moment, of these ranks; 0 is never among the numbers."""

    group: int
    members: tuple[int, ...]
    way: str
    """`new_group`, `local` (only members call it), or `split`."""


@dataclass(frozen=True)
class Close:
    """The end of a group, with calls under way or not."""

    group: int
    settles: bool


@dataclass(frozen=True)
class Memory:
    """Registered memory for later calls of the group, in place of the memory before."""

    group: int
    bytes: int
    is_moved: bool = False
    """Whether memory is registered that exists already, instead of made."""


@dataclass(frozen=True)
class Fork:
    """A fork in another thread, whose child uses memory and ends, during the steps that follow."""

    rank: int
    delay_us: int
    way: str
    """`os` or `multiprocessing`."""
    calls: bool = False
    """Whether the child tries to make a call, which is refused."""


@dataclass(frozen=True)
class Late:
    """A rank that takes its time."""

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
    """Calls on fake tensors by some ranks, which do nothing."""

    ranks: tuple[int, ...]
    group: int


@dataclass(frozen=True)
class Barrier:
    """A barrier of a group."""

    group: int
    is_monitored: bool = False


@dataclass(frozen=True)
class Restart:
    """The end of the job's group, and another one."""


@dataclass(frozen=True)
class Settle:
    """The end of all calls under way, in an order of each rank's own."""


Step: TypeAlias = (
    Call | Messages | Objects | Many | Open | Close | Memory | Fork | Late | Train | Fakes
    | Barrier | Restart | Settle
)  # fmt: skip


def possible(steps: list[Step], ranks: int) -> list[Step]:
    """The steps without those that lack what was left out before: a group that was not opened."""
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
