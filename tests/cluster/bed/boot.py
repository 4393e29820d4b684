"""`make cluster-up`: from built programs to a cluster that answers, step by step; what already runs is left alone."""

import os
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from tests.cluster.bed import addons
from tests.cluster.bed.certificates import make_certificates
from tests.cluster.bed.cgroups import make_group
from tests.cluster.bed.control_plane import commands, write_configuration
from tests.cluster.bed.envoy import envoy_folder
from tests.cluster.bed.images import containerd_answers, import_images, own_images
from tests.cluster.bed.kubectl import apply_text, succeeds
from tests.cluster.bed.network import make_bridge, remove_proxy_rules
from tests.cluster.bed.places import NODE, BedError, Places
from tests.cluster.bed.predictor_image import platform_image, predictor_image
from tests.cluster.bed.processes import alive, start, stop, until
from tests.cluster.bed.programs import HYPERKUBE_NAMES, missing, program
from tests.cluster.bed.release_files import release_folder
from tests.cluster.bed.steps import Steps

# What each must come from on Debian and Ubuntu.
PACKAGES: Final = {
    "containerd": "containerd", "ctr": "containerd", "runc": "runc", "nft": "nftables", "ip": "iproute2",
    "/usr/lib/cni/bridge": "containernetworking-plugins", "conntrack": "conntrack",
}  # fmt: skip
BINARIES: Final = ("hyperkube", "etcd", "prometheus", "helm")
CONTROL: Final = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet")
PROXY_RIGHTS: Final = """
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: kube-proxy}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "system:node-proxier"}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: "system:kube-proxy"}]
"""


def boot(places: Places, steps: Steps) -> None:
    check_machine()
    check_built(places)
    with steps.step("programs, keys, network"):
        _unpack(places)
        make_certificates(places)
        write_configuration(places)
        make_bridge(places)
        make_group(places)
    with steps.step("containerd"):
        start(places, "containerd", commands(places)["containerd"])
        until("containerd answers", 120, lambda: containerd_answers(places), places.log / "containerd.log")
    # Unpacking images takes the disk, starting Kubernetes the processor.
    with ThreadPoolExecutor(1) as beside:
        images = beside.submit(import_images, places, own_images(places))
        predictor = beside.submit(lambda: import_images(places, [predictor_image(places), platform_image(places)]))
        _boot_kubernetes(places, steps)
        with steps.step("images"):
            images.result()
        _boot_addons(places, steps)
        with steps.step("the predictor's image"):
            predictor.result()


def _boot_kubernetes(places: Places, steps: Steps) -> None:
    with steps.step("etcd, API server"):
        _start_control_plane(places)
    with steps.step("node"):
        apply_text(places, PROXY_RIGHTS)
        until("the node is ready", 300, lambda: _node_ready(places), places.log / "kubelet.log")
    with steps.step("kinds"):
        addons.kinds(places)


def _boot_addons(places: Places, steps: Steps) -> None:
    with steps.step("Prometheus; objects of Knative, KEDA, LeaderWorkerSet and Envoy Gateway"):
        addons.prometheus(places)
        addons.objects(places)
    for name, ready in _READY.items():
        with steps.step(f"{name} ready"):
            ready(places)


def restart(places: Places, name: str) -> None:
    """For tests of what happens when a part of the cluster goes away for a moment."""
    every = {**commands(places), "prometheus": addons.prometheus_command(places)}
    if name not in every:
        raise BedError(f"no daemon {name}; there are {', '.join(every)}")
    stop(places, name)
    start(places, name, every[name])
    _await_api_server(places)


_READY: Final = {
    "DNS": addons.dns_ready,
    "Knative": addons.knative_ready,
    "KEDA": addons.keda_ready,
    "LeaderWorkerSet": addons.lws_ready,
    "Envoy Gateway": addons.gateway_ready,
}


def check_machine() -> None:
    if sys.platform != "linux":
        raise BedError(
            "the bed runs containers and needs Linux: use another cluster with KUBECONFIG=… make cluster-test"
        )
    if os.geteuid() != 0:
        raise BedError("the bed makes a bridge, mounts and cgroups, and needs root: run this command with sudo")
    lacking = sorted({package for tool, package in PACKAGES.items() if shutil.which(tool) is None})
    if lacking:
        raise BedError(f"missing from this machine: apt-get install --no-install-recommends {' '.join(lacking)}")


def check_built(places: Places) -> None:
    lacking = [each.name for each in missing(places)]
    lacking += [] if envoy_folder(places).exists() else ["envoy"]
    lacking += [] if release_folder(places).exists() else ["manifests"]
    if lacking:
        raise BedError(
            f"{places.cache} lacks {', '.join(lacking)}: run make cluster-build"
            " (40 minutes from nothing on two cores, two with a warm Go cache)"
        )


def _unpack(places: Places) -> None:
    for folder in (places.bin, places.run, places.log, places.etc):
        folder.mkdir(parents=True, exist_ok=True)
    for name in BINARIES:
        _link(places.bin / name, program(name).product(places))
    for name in HYPERKUBE_NAMES:
        _link(places.bin / name, Path("hyperkube"))


def _link(path: Path, target: Path) -> None:
    if not path.is_symlink() or path.readlink() != target:
        path.unlink(missing_ok=True)
        path.symlink_to(target)


def _start_control_plane(places: Places) -> None:
    every = commands(places)
    start(places, "etcd", every["etcd"])
    start(places, "kube-apiserver", every["kube-apiserver"])
    _await_api_server(places)
    if not alive(places, "kube-proxy"):
        remove_proxy_rules()
    for name in CONTROL:
        start(places, name, every[name])


def _await_api_server(places: Places) -> None:
    log = places.log / "kube-apiserver.log"
    until("the API server is ready", 300, lambda: succeeds(places, "get", "--raw", "/readyz"), log)


def _node_ready(places: Places) -> bool:
    return succeeds(places, "wait", "--for=condition=Ready", f"node/{NODE}", "--timeout=1s")
