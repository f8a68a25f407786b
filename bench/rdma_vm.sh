#!/usr/bin/env bash
# Runs a command in a virtual machine with RDMA devices in software: see usage.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

# Exit statuses of this script itself.
over=124 failed=125 unable=77
# Raised when what lies in the cache changes.
recipe=1
cache=${XDG_CACHE_HOME:-${HOME:-/var/tmp}/.cache}/ringfold-rdma-vm
started=$EPOCHREALTIME

usage() {
    cat <<END
usage: rdma_vm.sh COMMAND [ARGUMENT]...
       rdma_vm.sh --check

Runs a command under a Linux that has RDMA devices in software (soft-RoCE), in QEMU. The guest sees
this machine's files, environment and current directory. What the command writes to the current
directory stays, and what it writes elsewhere is lost. Its output, errors and exit status are this
script's. Its standard input is empty.

The guest has the devices rxe0, rxe1, ... on 10.77.0.1, 10.77.0.2, ..., each on an interface of its
own (wire0, ...) whose other end (plug0, ...) is in a bridge. All processes see all devices.
"on-host 1 COMMAND" runs a command in the namespace of host 1, with TCP on 10.77.1.2, the host name
h1, and RDMA_DEVICE=rxe1: to sockets, two of these are two hosts. Faults:

  ip link set plug1 nomaster                  pulls a cable; the port does not notice
  ip link set plug1 master wire               puts it in again
  ip link set plug1 down                      pulls a cable; the port notices
  tc qdisc add dev wire1 root netem loss 1%   loses packets

--check only says whether this machine can run it. That takes x86-64, Debian with these packages, or
root to install them: ${packages[*]}.
A kernel is downloaded as a package and extracted, not installed: 70 MB in $cache.

Exit statuses of its own: $unable if this machine cannot run it, $over if the time was up, and $failed if
the machine did not come up.

  RDMA_VM_HOSTS    devices and hosts [2]
  RDMA_VM_CPUS     processors of the guest [4]
  RDMA_VM_MEMORY   its memory in MiB, taken from this machine as it is used [2048]
  RDMA_VM_TIMEOUT  seconds for all of it [600]
  RDMA_VM_MTU      of the interfaces; that of RoCE is the power of two below it [4200]
  RDMA_VM_CONSOLE  a file for the kernel's messages
  RDMA_VM_QUIET    if set, no line about times at the end
END
}

packages=(
    qemu-system-x86 busybox-static cpio kmod xz-utils iproute2 ibverbs-providers ibverbs-utils
    perftest
)
# In the order of loading. rxe finds the module of its checksum by name, as no dependency says.
modules=(
    virtio_pci virtio_console 9p 9pnet_virtio overlay veth bridge sch_netem crc32_generic rdma_rxe
)

# stop STATUS WORDS: ends the script.
stop() {
    local status=$1
    shift
    printf 'rdma_vm.sh: %s\n' "$*" >&2
    exit "$status"
}

missing_packages() {
    local name
    for name in "${packages[@]}"; do
        dpkg-query -W -f '${Status}\n' "$name" 2>/dev/null | grep -q '^install ok installed' ||
            echo "$name"
    done
}

# check: ends the script unless this machine can run the guest.
check() {
    local missing free
    [ "$(uname -m)" = x86_64 ] || stop $unable "the guest is x86-64, this machine $(uname -m)"
    command -v dpkg-query apt-get >/dev/null || stop $unable "this system has no apt-get"
    missing=$(missing_packages | paste -sd ' ')
    [ -z "$missing" ] || [ "$(id -u)" = 0 ] ||
        stop $unable "not installed: $missing; run apt-get install $missing, or this as root"
    free=$(awk '/^MemAvailable/ { print int($2 / 1024) }' /proc/meminfo)
    [ "$free" -ge "$memory" ] ||
        stop $unable "the guest needs $memory MiB of memory, of which $free are free"
}

install_packages() {
    local missing
    mapfile -t missing < <(missing_packages)
    [ ${#missing[@]} -gt 0 ] || return 0
    echo "rdma_vm.sh: installing ${missing[*]}" >&2
    {
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
            "${missing[@]}"
    } >"$cache/install.log" 2>&1 ||
        stop $unable "apt-get cannot install ${missing[*]}: see $cache/install.log"
}

kernel_package() {
    apt-cache depends linux-image-amd64 2>/dev/null |
        awk '/Depends: linux-image-[0-9]/ && !found { print $2; found = 1 }'
}

# prepare_kernel: the kernel and an initramfs with its modules, from the cache or new.
prepare_kernel() {
    [ ! -e "$cache/ready.$recipe" ] || return 0
    local package version
    work=$(mktemp -d "$cache/work.XXXXXX")
    package=$(kernel_package)
    if [ -z "$package" ]; then
        apt-get update -qq >"$cache/install.log" 2>&1 || true
        package=$(kernel_package)
    fi
    [ -n "$package" ] || stop $unable "apt-get knows no package linux-image-amd64"
    echo "rdma_vm.sh: extracting $package" >&2
    (cd "$work" && apt-get download -q "$package") >"$cache/download.log" 2>&1 ||
        stop $unable "apt-get cannot download $package: see $cache/download.log"
    dpkg -x "$work"/linux-image-*.deb "$work/kernel"
    version=$(ls "$work/kernel/lib/modules")
    depmod -b "$work/kernel" "$version"
    make_initramfs "$version"
    extract_kernel
    mv "$work/image" "$cache/kernel"
    rm -rf "$work" "$cache"/ready.*
    work=
    echo "$version" >"$cache/ready.$recipe"
}

# make_initramfs VERSION: busybox, the modules in order, and rdma_vm/init.sh.
make_initramfs() {
    local tree=$work/initramfs name file
    mkdir -p "$tree"/{bin,dev,proc,sys,lower,upper,new,modules}
    cp /bin/busybox "$tree/bin/"
    cp "$here/rdma_vm/init.sh" "$tree/init"
    chmod +x "$tree/init"
    for name in "${modules[@]}"; do
        modprobe -d "$work/kernel" -S "$1" --show-depends "$name" 2>/dev/null |
            awk '/^insmod/ { print $2 }'
    done | awk '!seen[$0]++' >"$work/modules"
    grep -q rdma_rxe "$work/modules" || stop $unable "Linux $1 has no module rdma_rxe"
    while read -r file; do
        name=$(basename "$file" .xz)
        case $file in
        *.xz) xz -dc "$file" >"$tree/modules/$name" ;;
        *) cp "$file" "$tree/modules/$name" ;;
        esac
        echo "$name" >>"$tree/modules/order"
    done <"$work/modules"
    (cd "$tree" && find . | cpio -o -H newc --quiet) | gzip -1 >"$cache/initramfs"
}

# extract_kernel: unpacked here it starts seconds sooner than if the emulated processor does that.
extract_kernel() {
    local offset
    cp "$work"/kernel/boot/vmlinuz-* "$work/image"
    offset=$(LC_ALL=C grep -obUaP '\xFD7zXZ\x00' "$work/image" | head -n 1 |
        cut -d: -f1) || true
    [ -n "$offset" ] || return 0
    tail -c "+$((offset + 1))" "$work/image" | xz -dc --single-stream \
        >"$work/plain" 2>/dev/null || true
    [ "$(head -c 4 "$work/plain" | tail -c 3)" != ELF ] || mv "$work/plain" "$work/image"
}

# What is left of a run goes with it, whatever ends it.
machine='' folder='' work=''
finish() {
    if [ -n "$machine" ]; then
        kill "$machine" 2>/dev/null || true
        wait "$machine" 2>/dev/null || true
    fi
    rm -rf "$folder" "$work"
}

# hand_over COMMAND...: what the guest reads.
hand_over() {
    mkdir "$folder/control"
    pwd >"$folder/control/directory"
    printf '%q ' "$@" >"$folder/control/command"
    export RDMA_VM_HOSTS=$hosts RDMA_VM_MTU=${RDMA_VM_MTU:-4200}
    export -p >"$folder/control/environment"
    cp "$here/rdma_vm/guest.sh" "$here/rdma_vm/on_host.sh" "$folder/control/"
    mkfifo "$folder/out" "$folder/err"
}

# boot: the machine in the background. Emulated: /dev/kvm may exist where it runs no such guest.
# Its processor does not claim to be quick at `rep movsb` (erms, fsrm), which is emulated byte by
# byte: else libc copies with it from 2 KiB to about 1 MiB, at a thirtieth of the rate.
boot() {
    local share=local,security_model=none,multidevs=remap
    timeout "$seconds" qemu-system-x86_64 -M q35 -accel tcg,thread=multi -cpu max,-erms,-fsrm \
        -smp "${RDMA_VM_CPUS:-4}" -m "$memory" -nodefaults -display none -no-reboot \
        -kernel "$cache/kernel" -initrd "$cache/initramfs" -append "$words" \
        -serial "file:$console" \
        -virtfs "$share,path=/,mount_tag=root,readonly=on" \
        -virtfs "$share,path=$PWD,mount_tag=work" \
        -virtfs "$share,path=$folder/control,mount_tag=control" \
        -device virtio-serial-pci \
        -chardev "file,id=out,path=$folder/out" -device virtserialport,chardev=out,name=out \
        -chardev "file,id=err,path=$folder/err" -device virtserialport,chardev=err,name=err \
        </dev/null &
    machine=$!
}

# times: when what was done, in seconds.
times() {
    local ready ended
    read -r ready <"$folder/control/ready"
    read -r ended <"$folder/control/ended"
    awk -v version="$(cat "$cache/ready.$recipe")" -v ready="$ready" -v ended="$ended" \
        -v total="$(awk "BEGIN { print $EPOCHREALTIME - $started }")" 'BEGIN {
            printf "rdma_vm.sh: Linux %s: the command took %.1f s, all %.1f s\n", \
                version, ended - ready, total
        }' >&2
}

[ $# -gt 0 ] || stop $failed "no command; see rdma_vm.sh --help"
hosts=${RDMA_VM_HOSTS:-2} memory=${RDMA_VM_MEMORY:-2048} seconds=${RDMA_VM_TIMEOUT:-600}
for number in "$hosts" "$memory" "$seconds"; do
    case $number in
    '' | *[!0-9]* | 0*) stop $failed "a value of RDMA_VM_... is $number: not a number from 1 up" ;;
    esac
done
[ "$hosts" -le 200 ] || stop $failed "RDMA_VM_HOSTS=$hosts: 200 at most"
case $1 in
--help | -h)
    usage
    exit
    ;;
--check)
    check
    exit
    ;;
-*) stop $failed "no option $1; see rdma_vm.sh --help" ;;
esac

check
mkdir -p "$cache"
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
# One run at a time prepares.
exec 9>"$cache/lock"
flock 9
install_packages
prepare_kernel
exec 9>&-

folder=$(mktemp -d "${TMPDIR:-/tmp}/rdma-vm.XXXXXX")
console=${RDMA_VM_CONSOLE:-$folder/console}
words="console=ttyS0 quiet loglevel=4 panic=-1 mitigations=off nokaslr audit=0 preempt=full"
# The clock that programs read without a system call; emulated timers are devices.
words="$words tsc=reliable clocksource=tsc"
hand_over "$@"
cat "$folder/out" &
out=$!
cat "$folder/err" >&2 &
err=$!
boot
status=0
wait "$machine" || status=$?
machine=
# Opened once more, in case the machine never did that.
: <>"$folder/out" <>"$folder/err"
wait "$out" "$err" || true

if ! [ -e "$folder/control/ended" ]; then
    [ "$status" != "$over" ] || stop $over "RDMA_VM_TIMEOUT=$seconds seconds were over"
    tail -n 20 "$console" >&2 || true
    [ ! -e "$folder/control/fault" ] || stop $failed "$(cat "$folder/control/fault")"
    stop $failed "the machine ended without a result, with status $status"
fi
[ -n "${RDMA_VM_QUIET:-}" ] || times
exit "$(cat "$folder/control/status")"
