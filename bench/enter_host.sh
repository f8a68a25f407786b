#!/bin/sh
# Runs a command on a host of lab.py, as ssh would: enter_host.sh [OPTIONS] HOST COMMAND...
# Options are ssh's and are ignored. The host has a name of its own, because MPIs take ranks with
# the same host name for neighbours.
set -eu
while [ "${1#-}" != "$1" ]; do shift; done
host=$1
shift
exec ip netns exec "$host" unshare --uts sh -c "hostname $host; $*"
