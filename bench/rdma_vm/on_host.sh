#!/bin/sh
# on-host NUMBER COMMAND...: runs a command on a host in the guest of rdma_vm.sh.
set -eu
host=$1
shift
[ -e "/run/netns/h$host" ] || {
    echo "on-host: no host $host; RDMA_VM_HOSTS makes more" >&2
    exit 2
}
export RDMA_DEVICE="rxe$host" RDMA_HOST="10.77.1.$((host + 1))"
# A name of its own, because libraries take processes with the same host name for neighbours.
exec ip netns exec "h$host" unshare --uts \
    sh -c 'echo "$0" >/proc/sys/kernel/hostname; exec "$@"' "h$host" "$@"
