#!/bin/bash
# images.sh TAG...: penstock:TAG and etcd:TAG from the roots that roots.sh made, in the running cluster.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
. "$here/env.sh"
first=${1:?usage: images.sh TAG...}
export USER_ID=10001:10001
VARIABLES='["PATH=/opt/penstock/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8", "PYTHONUNBUFFERED=1",
	"PYSPARK_PYTHON=/opt/penstock/bin/python", "SPARK_HOME=/opt/penstock/spark"]' ENTRYPOINT='["penstock"]' \
	"$here/image.sh" "penstock:$first" "$K/images/penstock" >> "$K/log/images" 2>&1
"$here/image.sh" "etcd:$first" "$K/images/etcd" >> "$K/log/images" 2>&1
for tag in "${@:2}"; do
	for name in penstock etcd; do ctr images tag "docker.io/library/$name:$first" "docker.io/library/$name:$tag"; done
done >> "$K/log/images"
step "images $*"
