"""A cluster and a release of the chart in it, once for all tests here, taken away at the end come what may.

The cluster is the one that KUBECONFIG names, which must have the images penstock:test, penstock:test2 and
etcd:test; or, without KUBECONFIG, one that scripts/kube makes on this machine.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import pytest

from kube import CACHE, SCRIPTS, kubectl, run
from kube_release import NAMESPACE, Release

VOLUMES = CACHE / "volumes"
USER = 10001


@pytest.fixture(scope="session")
def cluster() -> Iterator[bool]:
    """Whether it is our own."""
    own = str(CACHE / "etc" / "admin.conf")
    if os.environ.get("KUBECONFIG"):
        yield os.environ["KUBECONFIG"] == own  # that one too, if it was brought up by hand
        return
    started = time.monotonic()
    run(str(SCRIPTS / "down.sh"))  # what a run that was killed has left
    run(str(SCRIPTS / "build.sh"), timeout=3600)
    run(str(SCRIPTS / "roots.sh"), timeout=1800)
    roots = time.monotonic()
    print(f"\nbinaries and roots of images there after {roots - started:.0f} s")
    try:
        run(str(SCRIPTS / "up.sh"))
        os.environ["KUBECONFIG"] = own
        print(f"cluster up in {time.monotonic() - roots:.0f} s")
        run(str(SCRIPTS / "images.sh"), "test", "test2")
        print(f"with images in {time.monotonic() - roots:.0f} s")
        yield True
    finally:
        os.environ.pop("KUBECONFIG", None)
        run(str(SCRIPTS / "down.sh"), timeout=300)


@contextmanager
def _volumes(count: int) -> Iterator[None]:
    """Our own cluster has no provisioner: directories of this machine, for claims that name no class."""
    names = [f"penstock-{number}" for number in range(count)]
    for name in names:
        directory = VOLUMES / name
        directory.mkdir(parents=True)
        os.chown(directory, USER, USER)
        volume = f"""
            apiVersion: v1
            kind: PersistentVolume
            metadata: {{name: {name}}}
            spec:
              capacity: {{storage: 20Gi}}
              accessModes: [ReadWriteOnce]
              hostPath: {{path: {directory}}}
            """
        kubectl("apply", "-f", "-", stdin=volume)
    try:
        yield
    finally:
        kubectl("delete", "pv", *names, "--timeout=60s", check=False)
        shutil.rmtree(VOLUMES, ignore_errors=True)


@pytest.fixture(scope="session")
def release(cluster: bool) -> Iterator[Release]:
    """The chart, installed and ready; tests leave it so."""
    release = Release(own_cluster=cluster)
    kubectl("create", "namespace", NAMESPACE)
    with _volumes(2) if cluster else nullcontext():
        try:
            started = time.monotonic()
            release.install()
            print(f"\nhelm install --wait: {time.monotonic() - started:.0f} s")
            yield release
        finally:
            uninstall = ["helm", "uninstall", "it", "--namespace", NAMESPACE, "--ignore-not-found", "--wait"]
            run(*uninstall, check=False)
            kubectl("delete", "namespace", NAMESPACE, "--timeout=120s", check=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """What the cluster looks like when a test fails: later it is gone."""
    report = yield
    release = getattr(item, "funcargs", {}).get("release")
    if report.failed and isinstance(release, Release):  # type: ignore[attr-defined]
        report.sections.append(("cluster", release.look()))  # type: ignore[attr-defined]
    return report
