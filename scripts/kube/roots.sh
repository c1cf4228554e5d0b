#!/bin/bash
# Makes the roots of the chart's images, penstock and etcd, without a container engine or a registry: Debian with the
# wheel in a virtual environment, laid out as services/Dockerfile does. Kept in the cache; images.sh imports them.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
. "$here/env.sh"
repository=$here/../..
python=${PYTHON:-$repository/.venv/bin/python}
mkdir -p "$K"/{images,log}

root() { # root NAME PACKAGES: a Debian in images/NAME
	local made=$K/images/$1
	[ -d "$made" ] && return
	rm -rf "$made.part"
	debootstrap --variant=minbase --include="$2" bookworm "$made.part" > "$K/log/debootstrap-$1" 2>&1
	rm -rf "$made.part"/var/{cache/apt,lib/apt/lists}/* "$made.part"/usr/share/{doc,man,locale}/*
	mv "$made.part" "$made"
	step "root of $1"
}

wheels() { # the dependencies, by this machine's pip: it knows where wheels are to be had, the chroot need not
	local wanted
	wanted=$(sha256sum "$repository"/{pyproject.toml,constraints.txt} | sha256sum)
	[ "$(cat "$K/wheels/.made" 2> /dev/null)" = "$wanted" ] && return
	[ "$("$python" -c 'import sys; print(*sys.version_info[:2])')" = "3 11" ] ||
		{ echo "please use Python 3.11 (PYTHON=...): the image has Debian 12's, and takes this one's wheels" >&2; exit 1; }
	rm -rf "$K/wheels" "$K/images/penstock/opt/penstock"
	"$python" -m pip wheel --quiet -w "$K/wheels" -c "$repository/constraints.txt" "$repository[spark]" > "$K/log/wheels" 2>&1
	rm "$K"/wheels/penstock-*
	echo "$wanted" > "$K/wheels/.made"
	step "wheels of the dependencies"
}

inside() { chroot "$1" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin "${@:2}"; } # this machine's pip settings are its own

environment() {
	local made=$K/images/penstock wheel
	rm -rf "$made/wheels"
	cp -rl "$K/wheels" "$made/wheels" 2> /dev/null || cp -r "$K/wheels" "$made/wheels"
	wheel=$(mktemp -d "$K/wheel.XXXXXX")
	"$python" -m penstock.spark.build > /dev/null
	"$python" -m pip wheel --quiet --no-deps -w "$wheel" "$repository"
	cp "$wheel"/penstock-*.whl "$made/wheels/"
	rm -rf "$wheel"
	if [ ! -x "$made/opt/penstock/bin/pip" ]; then
		grep -q ^penstock: "$made/etc/passwd" || inside "$made" useradd --uid 10001 --user-group --no-create-home \
			--home-dir /var/lib/penstock --shell /usr/sbin/nologin penstock
		inside "$made" python3 -m venv /opt/penstock
		inside "$made" sh -c '/opt/penstock/bin/pip install --quiet --no-index --find-links /wheels "penstock[spark]"'
	fi
	inside "$made" sh -c '/opt/penstock/bin/pip install --quiet --no-index --no-deps --force-reinstall /wheels/penstock-*.whl'
	rm -rf "$made/wheels" "$made/opt/penstock/jobs"
	install -D -m 644 -t "$made/opt/penstock/jobs" "$repository"/spark-jobs/*.py
	ln -sfn "$(cd "$made" && echo opt/penstock/lib/python3*/site-packages/pyspark | sed s,^,/,)" "$made/opt/penstock/spark"
	step "penstock in its root"
}

root penstock python3,python3-venv,openjdk-17-jre-headless
root etcd etcd-server
wheels
environment
