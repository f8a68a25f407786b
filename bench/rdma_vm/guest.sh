# The second part of the guest of rdma_vm.sh, its first process: makes devices and hosts, runs the
# command, and ends the machine.
control=/run/rdma-vm
. $control/environment
ulimit -l unlimited
echo rdma-vm >/proc/sys/kernel/hostname
echo 1 >/proc/sys/net/ipv4/conf/all/accept_local
echo 0 >/proc/sys/net/ipv4/conf/all/rp_filter
echo 0 >/proc/sys/net/ipv4/conf/default/rp_filter
echo 1 >/proc/sys/net/ipv4/conf/all/arp_ignore

# end WORDS: ends the machine; with words, as a fault.
end() {
    [ $# = 0 ] || echo "$*" >$control/fault
    sync
    echo b >/proc/sysrq-trigger
    sleep 100
}

# rxe works in softirqs. Left to ksoftirqd, they take turns with a process that polls on the same
# processor, 4 ms each; messages then take that long, and answers come after the sender's timeout.
# So ksoftirqd goes before all others.
for task in /proc/[0-9]*; do
    read -r name <"$task/comm" && [ "${name%/*}" = ksoftirqd ] && chrt -f -p 1 "${task##*/}"
done 2>/dev/null

# rxe works in the first network namespace only (Linux 6.1), so all devices are there. What goes to
# another device of this machine would take the loopback device, which has no rxe; these rules send
# it over the wire.
{
    echo "link set lo up"
    echo "link add wire type bridge"
    echo "link set wire mtu $RDMA_VM_MTU up"
    echo "rule add pref 30 lookup local"
    echo "rule del pref 0"
    for ((i = 0; i < RDMA_VM_HOSTS; i++)); do
        address=10.77.0.$((i + 1)) table=$((100 + i))
        echo "link add wire$i type veth peer name plug$i"
        echo "link set plug$i mtu $RDMA_VM_MTU master wire up"
        echo "link set wire$i mtu $RDMA_VM_MTU up"
        echo "addr add $address/24 dev wire$i"
        echo "rule add pref 10 iif wire$i lookup local"
        echo "rule add pref 20 oif wire$i lookup $table"
        echo "route add 10.77.0.0/24 dev wire$i src $address table $table"
        echo "route add local $address dev wire$i table $table"
    done
} >/run/links
ip -batch /run/links || end "cannot make the network"
for ((i = 0; i < RDMA_VM_HOSTS; i++)); do
    echo "link add rxe$i type rxe netdev wire$i"
done >/run/devices
rdma -b /run/devices || end "cannot make the RDMA devices"

# The hosts: namespaces on a bridge of their own, for TCP.
{
    echo "link add lan type bridge"
    echo "link set lan up"
    for ((i = 0; i < RDMA_VM_HOSTS; i++)); do
        ip netns add "h$i" || end "cannot make host $i"
        echo "link add lan$i type veth peer name eth0 netns h$i"
        echo "link set lan$i master lan up"
    done
} >/run/hosts
ip -batch /run/hosts || end "cannot make the hosts"
for ((i = 0; i < RDMA_VM_HOSTS; i++)); do
    ip -n "h$i" -batch - <<END || end "cannot make host $i"
link set lo up
addr add 10.77.1.$((i + 1))/24 dev eth0
link set eth0 up
END
done
install -m 755 $control/on_host.sh /run/on-host
PATH=/run:$PATH

for port in /sys/class/virtio-ports/*; do
    read -r name <"$port/name"
    ln -s "/dev/${port##*/}" "/run/port-$name"
done
cut -d' ' -f1 /proc/uptime >$control/ready
read -r directory <$control/directory
cd "$directory" || end "no folder $directory"
bash $control/command </dev/null >/run/port-out 2>/run/port-err
echo $? >$control/status
cut -d' ' -f1 /proc/uptime >$control/ended
end
