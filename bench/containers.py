"""One experiment on this machine and in a container of docker compose, in turns, and the ratio of the two.

    docker compose --profile bench build bench
    scripts/with-docker python bench/containers.py spark --query filter,pass --size 1GiB --repeat 3

Whatever follows goes to `penstock bench` in both places, each time in new processes. Only our own contenders
can run: in the container there is no Apache Kafka. A topic is filled for whole seconds, so small ones differ:
compare records per second and CPU per record. Ends with 1 if push in it has less than 0.9 of the speed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any, Final

from penstock.bench.experiment import Better
from penstock.bench.statistics import ratio

ENOUGH: Final = 0.9
PLACES: Final = {
    "host": (sys.executable, "-m", "penstock.cli.main", "bench"),
    "container": ("docker", "compose", "--profile", "bench", "run", "--rm", "-T", "bench"),
}

Samples = dict[tuple[str, str, str], list[float]]
"""Of a variant, a contender and a metric."""


def measure(place: str, experiment: list[str]) -> dict[str, Any]:
    done = subprocess.run(
        [*PLACES[place], *experiment, "--json"], stdout=subprocess.PIPE, text=True, check=True
    )
    result: dict[str, Any] = json.loads(done.stdout[done.stdout.index("{") :])
    return result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=2, help="runs in each place (2)")
    parser.add_argument("--contenders", default="push", help="of push and pull (push)")
    parser.add_argument("--out", type=Path, help="where every result goes, as JSON")
    args, experiment = parser.parse_known_args()
    found: dict[str, Samples] = {place: defaultdict(list) for place in PLACES}
    results = []
    better: dict[str, Better] = {}
    for number in range(args.rounds):
        for place in list(PLACES)[:: 1 if number % 2 else -1]:
            result = measure(place, [*experiment, "--contenders", args.contenders])
            results.append({"place": place, **result})
            if args.out is not None:
                args.out.write_text(json.dumps(results, indent=1) + "\n")
            better = {name: Better(each["better"]) for name, each in result["metrics"].items()}
            for sample in result["samples"]:
                variant = " ".join(sample["variant"].values())
                for metric in better:
                    found[place][variant, sample["contender"], metric].append(sample[metric])
    slow = False
    for key, theirs in found["container"].items():
        compared = ratio(theirs, found["host"][key])
        assert compared is not None
        speed = compared.value if better[key[2]] is Better.MORE else 1 / compared.value
        slow |= key[1] == "push" and key[2] == "records_per_second" and speed < ENOUGH
        print(
            f"{key[0]:24} {key[1]:6} {key[2]:28} container {median(theirs):,.3f}"
            f" / host {median(found['host'][key]):,.3f} = {compared.value:.2f}"
            f" ({compared.low:.2f} to {compared.high:.2f}), {len(theirs)} samples"
        )
    sys.exit(slow)


if __name__ == "__main__":
    main()
