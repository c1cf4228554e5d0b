#!/bin/bash
# Brings up a real Kubernetes of one node on a bridge of this machine and prints the KUBECONFIG and PATH to export.
# Nothing listens outside loopback and the bridge, and pods have no route beyond them; down.sh takes it all away.
set -euo pipefail
umask 022 # containerd makes images' root directories with it
here=$(dirname "$(readlink -f "$0")")
. "$here/env.sh"
P=$K/pki

# ---- certificates and kubeconfigs

authority() {
	openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj /CN=penstock-kube \
		-keyout "$P/ca.key" -out "$P/ca.crt"
	openssl genrsa -out "$P/sa.key" 2048
	openssl rsa -in "$P/sa.key" -pubout -out "$P/sa.pub"
}

identity() { # identity NAME SUBJECT [ALTERNATIVE NAMES]: key, certificate, and a kubeconfig that uses them
	local extensions
	extensions=$(printf '%s\n' basicConstraints=critical,CA:FALSE keyUsage=critical,digitalSignature \
		"extendedKeyUsage=clientAuth${3:+,serverAuth}" ${3:+"subjectAltName=$3"})
	openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "$2" -keyout "$P/$1.key" |
		openssl x509 -req -CA "$P/ca.crt" -CAkey "$P/ca.key" -CAcreateserial -days 30 -out "$P/$1.crt" \
			-extfile <(echo "$extensions")
	cat > "$K/etc/$1.conf" <<-Y
		apiVersion: v1
		kind: Config
		clusters: [{name: penstock, cluster: {server: "https://$IP:6443", certificate-authority: $P/ca.crt}}]
		users: [{name: $1, user: {client-certificate: $P/$1.crt, client-key: $P/$1.key}}]
		contexts: [{name: penstock, context: {cluster: penstock, user: $1}}]
		current-context: penstock
	Y
}

identities() (
	umask 077
	authority
	identity etcd /CN=etcd IP:127.0.0.1
	identity apiserver /O=system:masters/CN=kube-apiserver \
		"IP:$IP,IP:${SERVICES%.*}.1,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local"
	identity admin /O=system:masters/CN=admin
	identity controller-manager /CN=system:kube-controller-manager
	identity scheduler /CN=system:kube-scheduler
	identity proxy /CN=system:kube-proxy
	identity kubelet /O=system:nodes/CN=system:node:$NODE "IP:$IP,DNS:$NODE"
	identity coredns /CN=coredns
)

# ---- processes

start() { # start NAME COMMAND...: recorded as "PID START-TIME", so that down.sh can't hit a pid used again
	local name=$1
	shift
	setsid "$@" > "$K/log/$name" 2>&1 < /dev/null 3>&- 4>&- 5>&- 6>&- 7>&- 8>&- 9>&- & # no lock of whoever called is kept
	echo $! "$(cut -d' ' -f22 /proc/$!/stat)" > "$K/run/$name.pid"
}

await() { # await SECONDS WHAT COMMAND...
	local end=$((SECONDS + $1)) what=$2
	shift 2
	until "$@" > "$K/log/await" 2>&1; do
		[ $SECONDS -lt $end ] || { echo "no $what; see $K/log" >&2; exit 1; }
		sleep 0.3
	done
	step "$what"
}

network() {
	# Made here and not by the CNI plugin: the node's own address is on it before any pod exists.
	ip link add $BRIDGE type bridge
	ip addr add $IP/24 dev $BRIDGE
	ip link set $BRIDGE up
	# A Docker engine on this machine lets FORWARD drop, which bridged packets meet too.
	iptables -I FORWARD -i $BRIDGE -o $BRIDGE -j ACCEPT
	# The kubelet sets some of these; down.sh puts them back.
	sysctl -e net.ipv4.ip_forward net.bridge.bridge-nf-call-iptables vm.overcommit_memory kernel.panic \
		kernel.panic_on_oops net.ipv4.conf.all.route_localnet > "$K/run/sysctl"
	sysctl -qw net.ipv4.ip_forward=1
	sysctl -qew net.bridge.bridge-nf-call-iptables=1
	cat > "$K/etc/cni/10-penstock.conflist" <<-J
		{"cniVersion": "1.0.0", "name": "penstock", "plugins": [
		  {"type": "bridge", "bridge": "$BRIDGE", "isGateway": true, "hairpinMode": true,
		   "ipam": {"type": "host-local", "dataDir": "$K/run/cni", "ranges": [[{"subnet": "$PODS"}]], "routes": [{"dst": "$SERVICES"}]}},
		  {"type": "portmap", "capabilities": {"portMappings": true}}]}
	J
}

runtime() {
	cat > "$K/etc/containerd.toml" <<-T
		version = 2
		root = "$K/containerd"
		state = "$K/run/containerd"
		[grpc]
		  address = "$K/run/containerd.sock"
		[plugins."io.containerd.internal.v1.opt"]
		  path = "$K/containerd/opt"
		[plugins."io.containerd.grpc.v1.cri"]
		  sandbox_image = "localhost/pause:1"
		  restrict_oom_score_adj = true  # root may lack CAP_SYS_RESOURCE, as in CI machines
		  stream_server_address = "127.0.0.1"
		  [plugins."io.containerd.grpc.v1.cri".cni]
		    bin_dir = "/usr/lib/cni"
		    conf_dir = "$K/etc/cni"
		  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
		    runtime_type = "io.containerd.runc.v2"
		    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
		      Root = "$K/run/runc"
	T
	start containerd containerd --config "$K/etc/containerd.toml"
	await 30 containerd ctr version
	if [ ! -x "$K/images/pause/pause" ]; then
		mkdir -p "$K/images/pause"
		gcc -Os -static -o "$K/images/pause/pause" -xc - <<-'C'
			#include <signal.h>
			#include <sys/wait.h>
			#include <unistd.h>
			static void end(int s) { (void)s; _exit(0); }
			static void reap(int s) { (void)s; while (waitpid(-1, 0, WNOHANG) > 0) {} }
			int main(void) { signal(SIGTERM, end); signal(SIGINT, end); signal(SIGCHLD, reap); for (;;) pause(); }
		C
	fi
	ENTRYPOINT='["/pause"]' "$here/image.sh" localhost/pause:1 "$K/images/pause" > "$K/log/images" 2>&1
}

control_plane() {
	start etcd etcd --data-dir "$K/etcd" --listen-client-urls https://127.0.0.1:22379 \
		--advertise-client-urls https://127.0.0.1:22379 --listen-peer-urls http://127.0.0.1:22380 \
		--initial-advertise-peer-urls http://127.0.0.1:22380 --initial-cluster default=http://127.0.0.1:22380 \
		--unsafe-no-fsync --client-cert-auth --trusted-ca-file "$P/ca.crt" --cert-file "$P/etcd.crt" --key-file "$P/etcd.key"
	start apiserver kube-apiserver --bind-address $IP --advertise-address $IP --service-cluster-ip-range $SERVICES \
		--etcd-servers https://127.0.0.1:22379 --etcd-cafile "$P/ca.crt" --etcd-certfile "$P/etcd.crt" --etcd-keyfile "$P/etcd.key" \
		--tls-cert-file "$P/apiserver.crt" --tls-private-key-file "$P/apiserver.key" --client-ca-file "$P/ca.crt" \
		--kubelet-preferred-address-types InternalIP --kubelet-certificate-authority "$P/ca.crt" \
		--kubelet-client-certificate "$P/apiserver.crt" --kubelet-client-key "$P/apiserver.key" \
		--service-account-issuer https://kubernetes.default.svc --service-account-key-file "$P/sa.pub" \
		--service-account-signing-key-file "$P/sa.key" --authorization-mode Node,RBAC \
		--enable-admission-plugins NodeRestriction --allow-privileged
	await 120 apiserver kubectl get --raw /readyz
	start controller-manager kube-controller-manager --bind-address 127.0.0.1 --leader-elect=false \
		--use-service-account-credentials --{,authentication-,authorization-}kubeconfig="$K/etc/controller-manager.conf" \
		--service-account-private-key-file "$P/sa.key" --root-ca-file "$P/ca.crt" \
		--cluster-signing-cert-file "$P/ca.crt" --cluster-signing-key-file "$P/ca.key"
	start scheduler kube-scheduler --bind-address 127.0.0.1 --leader-elect=false \
		--{,authentication-,authorization-}kubeconfig="$K/etc/scheduler.conf"
}

node() {
	cat > "$K/etc/kubelet.yaml" <<-Y
		apiVersion: kubelet.config.k8s.io/v1beta1
		kind: KubeletConfiguration
		address: $IP
		authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $P/ca.crt}}
		authorization: {mode: Webhook}
		tlsCertFile: $P/kubelet.crt
		tlsPrivateKeyFile: $P/kubelet.key
		containerRuntimeEndpoint: unix://$K/run/containerd.sock
		podLogsDir: $K/log/pods
		cgroupDriver: cgroupfs
		failCgroupV1: false
		clusterDomain: cluster.local
		clusterDNS: [$IP]
		resolvConf: /dev/null
		makeIPTablesUtilChains: false
		oomScoreAdj: 0
		maxOpenFiles: 20000
		# At 85 % of the disk it would throw images away, and none can be pulled again here.
		imageGCHighThresholdPercent: 100
		volumePluginDir: $K/kubelet/volumeplugins
		evictionHard: {nodefs.available: 1Gi, imagefs.available: 1Gi, memory.available: 100Mi}
	Y
	start kubelet kubelet --config "$K/etc/kubelet.yaml" --kubeconfig "$K/etc/kubelet.conf" --root-dir "$K/kubelet" \
		--hostname-override $NODE --node-ip $IP
	cat > "$K/etc/proxy.yaml" <<-Y
		apiVersion: kubeproxy.config.k8s.io/v1alpha1
		kind: KubeProxyConfiguration
		clientConnection: {kubeconfig: $K/etc/proxy.conf}
		mode: nftables
		bindAddress: $IP
		healthzBindAddress: 127.0.0.1:10256
		hostnameOverride: $NODE
		clusterCIDR: $PODS
		conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
	Y
	start proxy kube-proxy --config "$K/etc/proxy.yaml"
	cat > "$K/etc/Corefile" <<-C
		cluster.local in-addr.arpa {
		    bind $IP
		    errors
		    kubernetes cluster.local in-addr.arpa {
		        kubeconfig $K/etc/coredns.conf
		    }
		}
		. {
		    bind $IP
		    template ANY ANY {
		        rcode NXDOMAIN
		    }
		}
	C
	kubectl create clusterrole coredns --verb=list,watch --resource=services,pods,namespaces,endpointslices.discovery.k8s.io
	kubectl create clusterrolebinding coredns --clusterrole=coredns --user=coredns
	start coredns coredns -conf "$K/etc/Corefile"
}

answers_names() {
	# A query for kubernetes.default.svc.cluster.local, by hand: no resolver of this machine is set up for the cluster.
	python3 - "$IP" <<-'Y'
		import socket, sys
		query = bytes.fromhex("0001010000010000000000000a6b756265726e657465730764656661756c740373766307636c7573746572056c6f63616c0000010001")
		asking = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
		asking.settimeout(1)
		asking.sendto(query, (sys.argv[1], 53))
		answer = asking.recv(512)
		assert answer[3] & 15 == 0 and answer[7], answer
	Y
}

"$here/build.sh"
mkdir -p "$K"/{etc/cni,pki,log,run,images}
exec 9> "$K/lock"
flock -n 9 || { echo "another up.sh is at work in $K" >&2; exit 1; }
ls "$K"/run/*.pid > /dev/null 2>&1 && { echo "already up, or not taken down: run down.sh" >&2; exit 1; }
trap '[ $? = 0 ] || { echo "it did not come up; see $K/log" >&2; "$here/down.sh"; }' EXIT
identities > "$K/log/certificates" 2>&1
network
runtime
control_plane
node > "$K/log/node"
await 120 "node registered" kubectl get node $NODE
await 120 "node ready" kubectl wait --for=condition=Ready node/$NODE --timeout=5s
await 120 "service account" kubectl get serviceaccount default
await 60 DNS answers_names
echo "export KUBECONFIG=$KUBECONFIG PATH=$K/bin:\$PATH"
