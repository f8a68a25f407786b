"""Old names of public classes, which work until version 0.2."""

import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any

ERRORS = {
    "Aborted": "AbortedError",
    "Closed": "ClosedError",
    "Corrupt": "CorruptError",
    "InvalidArgument": "InvalidArgumentError",
    "Mismatch": "MismatchError",
    "PeerFailed": "PeerFailedError",
    "Timeout": "RingfoldTimeoutError",
    "Unsupported": "UnsupportedError",
}
"""The new names of errors, by the old ones."""


def finder(module: str, names: Mapping[str, str], depth: int = 2) -> Callable[[str], Any]:
    """The function `__getattr__` of a module, for old names of its attributes. `depth` is the
    stack level of the user's frame, seen from the returned function.
    """

    def find(name: str) -> Any:
        if name not in names:
            text = f"module `{module}` has no attribute `{name}`"
            # By the name and the module, Python suggests similar names.
            raise AttributeError(text, name=name, obj=sys.modules[module])
        new = names[name]
        text = f"`{module}.{name}` is now `{module}.{new}`; the old name works until version 0.2"
        warnings.warn(text, DeprecationWarning, stacklevel=depth)
        return getattr(sys.modules[module], new)

    return find
