#!/bin/bash
# Stops what up.sh started, by its recorded pids, and removes all state of the cluster; keeps binaries and images' roots.
set -uo pipefail
. "$(dirname "$(readlink -f "$0")")/env.sh"
[ -d "$K/run" ] || exit 0
mkdir -p "$K/log"

lives() { # lives PID START-TIME
	[ "$(cut -d' ' -f22 "/proc/$1/stat" 2> /dev/null)" = "$2" ] && [ "$(cut -d' ' -f3 "/proc/$1/stat" 2> /dev/null)" != Z ]
}

stop() {
	local pid started
	[ -f "$K/run/$1.pid" ] || return 0
	read -r pid started < "$K/run/$1.pid"
	lives "$pid" "$started" && kill "$pid"
	for _ in {1..100}; do lives "$pid" "$started" || break; sleep 0.1; done
	lives "$pid" "$started" && kill -KILL "$pid"
	rm "$K/run/$1.pid"
}

# The kubelet takes the pods down, with their networks and mounts, while nothing new can be scheduled.
if timeout 5 kubectl get --raw /readyz; then
	kubectl cordon $NODE
	kubectl delete pods --all --all-namespaces --now --timeout=60s
fi > "$K/log/down" 2>&1
for name in kubelet proxy coredns scheduler controller-manager apiserver etcd; do stop $name; done

# What the kubelet left, should it have been dead.
if [ -f "$K/run/containerd.pid" ]; then
	for id in $(ctr containers ls -q); do
		netns=$(ctr containers info "$id" | grep -o '/run/netns/cni-[^"]*' | head -1)
		ctr tasks kill -s KILL "$id"
		[ -z "$netns" ] || ip netns delete "${netns##*/}"
	done >> "$K/log/down" 2>&1
	for _ in {1..50}; do ctr tasks ls 2> /dev/null | grep -q RUNNING || break; sleep 0.1; done
	for id in $(ctr tasks ls -q 2> /dev/null); do ctr tasks delete "$id"; done >> "$K/log/down" 2>&1
	stop containerd
fi
grep -o " $K/[^ ]*" /proc/self/mounts | sort -r | xargs -r umount >> "$K/log/down" 2>&1
nft delete table ip kube-proxy 2> /dev/null
nft delete table ip6 kube-proxy 2> /dev/null
iptables -D FORWARD -i $BRIDGE -o $BRIDGE -j ACCEPT 2> /dev/null
ip link delete $BRIDGE 2> /dev/null
for groups in /sys/fs/cgroup/kubepods /sys/fs/cgroup/*/kubepods; do
	[ ! -d "$groups" ] || find "$groups" -depth -type d -exec rmdir {} + 2> /dev/null
done
[ ! -f "$K/run/sysctl" ] || sysctl -qp "$K/run/sysctl"
rm -rf --one-file-system "$K"/{containerd,etcd,kubelet,run,etc,pki,volumes,log/pods}
