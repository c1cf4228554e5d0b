#!/bin/bash
# image.sh NAME:TAG DIR: makes DIR the root of a one-layer image in the node's containerd. Not tagged "latest", which
# a kubelet would try to pull. ENTRYPOINT (JSON), USER_ID and VARIABLES (a JSON list of "NAME=value") go in its config.
set -euo pipefail
. "$(dirname "$(readlink -f "$0")")/env.sh"
work=$(mktemp -d "$K/image.XXXXXX")
trap 'rm -rf "$work"' EXIT
tar -C "$2" --numeric-owner --sort=name --exclude='./dev/*' --exclude='./proc/*' --exclude='./sys/*' -cf "$work/layer.tar" .
variables=${VARIABLES:-'["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]'}
cat > "$work/config.json" <<J
{"architecture": "$(go env GOARCH 2> /dev/null || echo amd64)", "os": "linux",
 "config": {"Env": $variables, "Entrypoint": ${ENTRYPOINT:-null}, "User": "${USER_ID:-}"},
 "rootfs": {"type": "layers", "diff_ids": ["sha256:$(sha256sum < "$work/layer.tar" | cut -d' ' -f1)"]}}
J
echo "[{\"Config\": \"config.json\", \"RepoTags\": [\"$1\"], \"Layers\": [\"layer.tar\"]}]" > "$work/manifest.json"
tar -C "$work" -cf "$work/image.tar" manifest.json config.json layer.tar
ctr images import "$work/image.tar"
