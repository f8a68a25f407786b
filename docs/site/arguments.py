"""Tables of arguments for the Python API.

The methods of a communicator share most of their arguments, so each argument is described once,
here. An argument without a description is an error.
"""

from typing import Any

import griffe

CLASSES = {"Communicator", "ObjectCollectives"}

COMMON = {
    "x": "This rank's data: a NumPy array, a torch tensor in host memory, or any object that"
    " supports the buffer protocol or DLPack. `recv` fills it.",
    "thing": "This rank's object: anything that `pickle` takes.",
    "op": 'The operation: `"sum"`, `"prod"`, `"min"`, `"max"`, `"avg"`, `"band"`, `"bor"`,'
    ' `"bxor"`, or `ringfold.premul_sum(factor)`.',
    "root": "The rank that gives or gets the data. The same on all ranks.",
    "counts": "Rows of each rank along axis 0, if they differ. The same list on all ranks.",
    "send_counts": "Rows that this rank sends to each rank, if they differ.",
    "recv_counts": "Rows that this rank receives from each rank, if they differ.",
    "out": "The array for the result, C-contiguous, instead of a new one. `out=x` works in place.",
    "async_": "Return a `Work` at once instead of waiting for the result.",
    "timeout": "Seconds after which the call fails, instead of the communicator's.",
    "algorithm": "The algorithm by name, instead of the tuner's choice. The same on all ranks.",
    "reproducible": "Whether the result has the same bits for any size, algorithm, transport and"
    " division into hosts. The same on all ranks.",
    "peer": "The other rank; for `recv`, `None` stands for any.",
    "tag": "Only messages with the same tag match.",
    "shape": "The shape of the array; may differ between ranks.",
    "dtype": "The data type, by name or as NumPy's.",
    "color": "Ranks with the same color form a communicator; `None` for none.",
    "key": "Orders the ranks of the new communicator; equal keys by rank.",
    "weights": "A whole number for each rank, or `None` for equal parts.",
    "reason": "A text that all ranks get in the error.",
}

SPECIAL = {
    ("standing", "timeout"): "Seconds to wait for the answers of all ranks.",
    ("reduce", "root_and_op"): "The root and the operation, in either order.",
    ("broadcast_object", "thing"): "The root's object; ignored on other ranks.",
}
"""Arguments with a different meaning in one method."""


class Arguments(griffe.Extension):  # type: ignore[misc]
    """Adds a table of arguments to the methods of the communicator."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """Adds the table to a method's docstring; griffe calls it for each function."""
        parent = func.parent
        if parent is None or parent.name not in CLASSES or func.name.startswith("_"):
            return
        # A module built into the source tree has classes with the same names.
        if parent.path.startswith("ringfold._native"):
            return
        if func.docstring is None or "property" in func.labels:
            return
        rows = []
        for parameter in func.parameters:
            if parameter.name == "self":
                continue
            about = SPECIAL.get((func.name, parameter.name), COMMON.get(parameter.name))
            if about is None:
                raise KeyError(f"docs/site/arguments.py: {func.name} has `{parameter.name}`")
            rows.append(f"    {parameter.name}: {about}")
        if rows:
            func.docstring.value += "\n\nArgs:\n" + "\n".join(rows)
