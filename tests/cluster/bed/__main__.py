"""A real cluster on one machine: `python -m tests.cluster.bed build|up|down|image|status`, behind `make cluster-*`.

Kubernetes, Knative Serving, KEDA, Prometheus and Envoy Gateway, built from Go modules and run without Docker and
without an image registry. CONTRIBUTING.md tells how to use it.
"""

import argparse
import fcntl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.cluster.bed import addons
from tests.cluster.bed.boot import boot, check_built, check_machine, restart
from tests.cluster.bed.building import build
from tests.cluster.bed.envoy import fetch_envoy
from tests.cluster.bed.images import import_images
from tests.cluster.bed.places import DOMAIN, INGRESS_IP, ROOT, BedError, Places, places
from tests.cluster.bed.predictor_image import FRAMEWORKS, framework_image, platform_image, predictor_image
from tests.cluster.bed.processes import alive
from tests.cluster.bed.programs import PROGRAMS, missing
from tests.cluster.bed.release_files import make_release_files
from tests.cluster.bed.shutdown import DAEMONS, shut_down
from tests.cluster.bed.steps import Steps, say


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.bed", description=__doc__.partition("\n")[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("build", help="make what the cache lacks").add_argument("program", nargs="*")
    verbs.add_parser("ci", help="if everything is built: up, the tests, and down unless it was up before")
    verbs.add_parser("up", help="start the cluster, or what of it does not run")
    verbs.add_parser("down", help="end it").add_argument("--purge", action="store_true", help="remove its state too")
    image = verbs.add_parser("image", help="pack the predictor as it is in this tree, and import it")
    image.add_argument("--variant", action="append", default=[], choices=FRAMEWORKS, help="one for a framework too")
    verbs.add_parser("restart", help="one of its daemons").add_argument("daemon")
    verbs.add_parser("status", help="which of its daemons run")
    options = parser.parse_args(arguments)
    try:
        where = places()
        with _alone(where, options.verb):
            return VERBS[options.verb](where, options)
    except BedError as problem:
        sys.stderr.write(f"{problem}\n")
        return 1


@contextmanager
def _alone(where: Places, verb: str) -> Iterator[None]:
    """One at a time: two people who start, end or fill one cluster would tread on each other. Looking is free."""
    where.cache.mkdir(parents=True, exist_ok=True)
    with open(where.cache / f"{'build' if verb == 'build' else 'cluster'}.lock", "w") as lock:
        if verb not in ("status", "ci"):
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(where: Places, options: argparse.Namespace) -> int:
    unknown = set(options.program) - {each.name for each in PROGRAMS}
    if unknown:
        raise BedError(f"no program {', '.join(unknown)}; there are {', '.join(each.name for each in PROGRAMS)}")
    steps = Steps()
    build(where, [each for each in missing(where) if not options.program or each.name in options.program], steps)
    if not options.program:
        with steps.step("Envoy"):
            fetch_envoy(where)
        with steps.step("manifests"):
            make_release_files(where)
    say(f"built in {steps.seconds:.0f} s, in {where.cache}")
    return 0


def _ci(where: Places, _: argparse.Namespace) -> int:
    """On a machine that has never built the bed, or cannot run it, that is said, and is no failure."""
    try:
        check_built(where)
        check_machine()
    except BedError as problem:
        say(f"the tests that need a cluster were left out: {problem}")
        return 0
    somebodys = alive(where, "kube-apiserver")
    try:
        return main(["up"]) or subprocess.call(["make", "cluster-test"], cwd=ROOT, stdin=subprocess.DEVNULL)
    finally:
        if not somebodys:
            main(["down"])


def _up(where: Places, _: argparse.Namespace) -> int:
    steps = Steps()
    boot(where, steps)
    say(f"up in {steps.seconds:.0f} s")
    say(f"Knative services: http://{INGRESS_IP} with Host: NAME.NAMESPACE.{DOMAIN}")
    for name, address in addons.addresses().items():
        say(f"{name}: {address}")
    say(f"export KUBECONFIG={where.kubeconfig}")
    return 0


def _down(where: Places, options: argparse.Namespace) -> int:
    steps = Steps()
    with steps.step("ended"):
        shut_down(where, options.purge)
    return 0


def _image(where: Places, options: argparse.Namespace) -> int:
    if not alive(where, "containerd"):
        raise BedError("the cluster does not run, so there is nobody to import an image: run make cluster-up")
    steps = Steps()
    with steps.step("packed"):
        images = [predictor_image(where), platform_image(where)]
        images += [framework_image(where, variant) for variant in options.variant]
    with steps.step("imported"):
        fresh = import_images(where, images)
    say(f"{' and '.join(image.name for image in images)}: {'new' if fresh else 'there already'}")
    return 0


def _restart(where: Places, options: argparse.Namespace) -> int:
    with Steps().step(options.daemon):
        restart(where, options.daemon)
    return 0


def _status(where: Places, _: argparse.Namespace) -> int:
    states = {name: alive(where, name) for name in (*reversed(DAEMONS), "kubelet")}
    for name, runs in states.items():
        say(f"{name:25} {'runs' if runs else 'does not run'}")
    return 0 if all(states.values()) else 1


VERBS = {"build": _build, "ci": _ci, "up": _up, "down": _down, "image": _image, "restart": _restart, "status": _status}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
