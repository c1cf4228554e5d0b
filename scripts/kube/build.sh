#!/bin/bash
# Builds Kubernetes, CoreDNS and helm from their Go modules into the cache, once (about nine minutes on two cores),
# and installs what else the cluster needs through apt. Run by up.sh; `build.sh helm` builds helm alone.
set -euo pipefail
. "$(dirname "$(readlink -f "$0")")/env.sh"
mkdir -p "$K"/{bin,log,src/kube,src/coredns}
exec 9> "$K/build.lock"
flock 9

packages() {
	local missing=() pair
	for pair in containerd:containerd runc:runc etcd:etcd-server debootstrap:debootstrap nft:nftables iptables:iptables \
		jq:jq openssl:openssl gcc:gcc ip:iproute2; do
		command -v "${pair%:*}" > /dev/null || missing+=("${pair#*:}")
	done
	[ -x /usr/lib/cni/bridge ] || missing+=(containernetworking-plugins)
	[ ${#missing[@]} = 0 ] && return
	if [ "$(id -u)" != 0 ] || ! command -v apt-get > /dev/null; then
		echo "please install: ${missing[*]} (and be root: a cluster needs network and mounts)" >&2
		exit 1
	fi
	step "apt: installing ${missing[*]}"
	{ apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${missing[@]}"; } > "$K/log/apt" 2>&1
}

built() { [ -x "$K/bin/$1" ] && [ "$(cat "$K/bin/.$1" 2> /dev/null)" = "$2" ]; }
mark() { echo "$2" > "$K/bin/.$1"; }

kubernetes() {
	cd "$K/src/kube"
	local origin version=k8s.io/component-base/version
	origin=$(go mod download -json k8s.io/kubernetes@v$KUBE | jq -r .GoMod)
	{
		echo "module kube"
		grep '^go ' "$origin"
		echo "require k8s.io/kubernetes v$KUBE"
		# Its libraries live in its own tree there; as modules they have a version each, 0.x for its 1.x.
		sed -n "s|^\s*\(k8s.io/\S*\) => ./staging/.*|replace \1 => \1 v0.${KUBE#1.}|p" "$origin"
	} > go.mod
	# Without a stamped version the API server calls itself v0.0.0, which a chart's kubeVersion refuses.
	go build -mod=mod -trimpath -o "$K/bin/" -ldflags "-s -w -X $version.gitVersion=v$KUBE -X $version.gitMajor=1 \
		-X $version.gitMinor=$(cut -d. -f2 <<< $KUBE) -X $version.gitTreeState=clean" \
		k8s.io/kubernetes/cmd/{kubelet,kube-apiserver,kube-controller-manager,kube-scheduler,kube-proxy,kubectl}
}

coredns() {
	cd "$K/src/coredns"
	cat > main.go <<-'G'
		package main

		import (
			"github.com/coredns/coredns/core/dnsserver"
			"github.com/coredns/coredns/coremain"
			_ "github.com/coredns/coredns/plugin/bind"
			_ "github.com/coredns/coredns/plugin/errors"
			_ "github.com/coredns/coredns/plugin/kubernetes"
			_ "github.com/coredns/coredns/plugin/template"
		)

		func main() {
			dnsserver.Directives = []string{"bind", "errors", "template", "kubernetes"}
			coremain.Run()
		}
	G
	printf 'module dns\ngo 1.24.0\nrequire github.com/coredns/coredns v%s\n' $DNS > go.mod
	go build -mod=mod -trimpath -ldflags '-s -w' -o "$K/bin/coredns" .
}

helm() {
	# Without a cluster it renders for the version it is stamped with.
	local minor stamp=
	minor=$(cut -d. -f2 <<< $KUBE)
	for package in chartutil lint/rules; do
		stamp+=" -X helm.sh/helm/v3/pkg/$package.k8sVersionMajor=1 -X helm.sh/helm/v3/pkg/$package.k8sVersionMinor=$minor"
	done
	GOBIN=$K/bin go install -trimpath -ldflags "-s -w$stamp" helm.sh/helm/v3/cmd/helm@v$HELM
}

one() { # one BINARY VERSION FUNCTION
	built "$1" "$2" && return
	command -v go > /dev/null || { echo "please install Go: $3 is built from source" >&2; exit 1; }
	"$3" > "$K/log/build-$3" 2>&1 || { tail -5 "$K/log/build-$3" >&2; exit 1; }
	mark "$1" "$2"
	step "built $3 $2"
}

one helm $HELM helm
[ "${1:-}" = helm ] && exit
packages
one kubectl $KUBE kubernetes
one coredns $DNS coredns
