# Sourced by the scripts beside it: where the test cluster lives and what it is made of.
K=$(realpath -m "${PENSTOCK_KUBE:-${XDG_CACHE_HOME:-$HOME/.cache}/penstock/kube}")
KUBE=1.34.4 DNS=1.13.1 HELM=3.19.2
NODE=penstock BRIDGE=penstock-kube IP=10.244.0.1 PODS=10.244.0.0/24 SERVICES=10.96.0.0/16
export KUBECONFIG=$K/etc/admin.conf PATH=$K/bin:$PATH:/usr/sbin:/sbin
ctr() { command ctr -a "$K/run/containerd.sock" -n k8s.io "$@"; }
step() { printf '%5ds  %s\n' $SECONDS "$*"; }
