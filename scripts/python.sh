#!/bin/sh
# Prints the Python that the virtual environment is made with: the first of these that is 3.11 or later and
# has venv, an optimised build before any other (it runs Python code about a quarter faster). Distributions
# optimise theirs, in /usr, and don't always say so; others are built with --enable-optimizations.
set -eu
verdict() {
  command -v "$1" >/dev/null 2>&1 && "$1" - <<'END' 2>/dev/null
import importlib.util, sys, sysconfig
if sys.version_info < (3, 11):
    sys.exit()
optimised = sys.base_prefix == "/usr" or "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or "")
complete = importlib.util.find_spec("ensurepip") and importlib.util.find_spec("venv")
print(("optimised" if optimised else "plain") if complete else "incomplete")
END
}
if [ "$(verdict /usr/bin/python3)" = incomplete ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq python3-venv; } >/dev/null 2>&1 || true
fi
for wanted in optimised plain; do
  for candidate in python3 /usr/bin/python3 python3.13 python3.12 python3.11; do
    if [ "$(verdict "$candidate")" = "$wanted" ]; then
      echo "$candidate"
      exit 0
    fi
  done
done
echo "please install Python 3.11 or later, with venv" >&2
exit 1
