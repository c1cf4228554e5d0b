#!/bin/sh
# What does not come from PyPI: a JDK for the connector; kcat, etcd, Prometheus, network
# namespaces and clocks for tests. Installed through apt when something is missing and we may; otherwise one line
# says what to install.
set -eu
missing=""
command -v javac >/dev/null 2>&1 || missing="$missing default-jdk-headless"
command -v kcat >/dev/null 2>&1 || missing="$missing kcat"
command -v etcd >/dev/null 2>&1 || missing="$missing etcd-server"
command -v mvn >/dev/null 2>&1 || missing="$missing maven"
command -v ip >/dev/null 2>&1 || missing="$missing iproute2"
[ -n "$(find /usr/lib -name libfaketime.so.1 2>/dev/null)" ] || missing="$missing libfaketime"
command -v promtool >/dev/null 2>&1 || missing="$missing prometheus"
[ -z "$missing" ] && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
  echo "==> apt: installing$missing"
  apt-get update -qq >/dev/null
  # Some of these are services; tests start their own, so nothing may start by itself.
  policy=/usr/sbin/policy-rc.d
  if [ ! -e $policy ]; then
    trap 'rm -f $policy' EXIT
    printf '#!/bin/sh\nexit 101\n' >$policy
    chmod +x $policy
  fi
  # shellcheck disable=SC2086
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
else
  echo "please install:$missing (a JDK 17 or later; kcat, etcd, maven, prometheus, iproute2 and libfaketime for the tests)" >&2
  command -v javac >/dev/null 2>&1 || exit 1
fi
