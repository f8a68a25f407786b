"""The `ringfold` command that the package installs, also run as `python -m ringfold`."""

import signal
import sys

from ringfold import _native


def main() -> int:
    """Run this process' command line and return the exit status."""
    # The command handles signals itself; Python's handler would wait for it to return.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # -P keeps the current folder, which may contain a `ringfold`, off the module path.
    program = [sys.executable, "-P", "-m", "ringfold"]
    return _native.command(program, sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
