#!/bin/busybox sh
# The first process of the guest of rdma_vm.sh: mounts the files of the machine outside, and goes on
# there. What is written to them stays in memory, but for the current directory and the control
# folder.
b=/bin/busybox
$b mount -t proc proc /proc
$b mount -t sysfs sys /sys
$b mount -t devtmpfs dev /dev
while read -r module; do
    $b insmod "/modules/$module" || echo "cannot load $module"
done </modules/order
share=trans=virtio,version=9p2000.L,msize=512000
$b mount -t 9p -o $share,ro,cache=loose root /lower
$b mount -t tmpfs -o size=75% upper /upper
$b mkdir /upper/files /upper/work
$b mount -t overlay -o lowerdir=/lower,upperdir=/upper/files,workdir=/upper/work files /new
for place in proc sys dev; do $b mount --move /$place /new/$place; done
$b mkdir -p /new/dev/pts /new/dev/shm
$b mount -t devpts devpts /new/dev/pts
$b mount -t tmpfs shm /new/dev/shm
$b mount -t tmpfs run /new/run
$b mkdir /new/run/rdma-vm
$b mount -t 9p -o $share,cache=none control /new/run/rdma-vm
read -r directory </new/run/rdma-vm/directory
$b mkdir -p "/new$directory"
$b mount -t 9p -o $share,cache=mmap work "/new$directory"
exec $b switch_root /new /bin/bash /run/rdma-vm/guest.sh
