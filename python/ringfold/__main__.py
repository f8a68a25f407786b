"""The `ringfold` command, as the package installs it: `python -m ringfold` is the same."""

import signal
import sys

from ringfold import _native


def main() -> int:
    """Carries out this process' command line; gives the exit status."""
    # The command handles signals itself; Python's handler would wait for it to return.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # Not with a module path that begins with the current folder, which may have a `ringfold`.
    program = [sys.executable, "-P", "-m", "ringfold"]
    return _native.command(program, sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
