"""The bed's programs: what each is built from, and the key under which the cache keeps it.

A program is a folder of src/ with a go.mod and a go.sum, which pin everything it links by hash, and a package to build
there. Change a pin with `go get MODULE@VERSION && go mod tidy` in that folder; only its programs are built again.
"""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.cluster.bed.places import HERE, BedError, Places

SOURCES: Final = HERE / "src"


@dataclass(frozen=True, slots=True)
class Program:
    name: str
    source: str  # folder of src/
    package: str = "."
    flags: str = ""  # for the linker
    tags: str = ""

    @property
    def key(self) -> str:
        """Of everything that decides what comes out."""
        digest = hashlib.sha256(repr((self.name, self.package, self.flags, self.tags)).encode())
        for path in sorted((SOURCES / self.source).iterdir()):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
        return digest.hexdigest()[:12]

    def product(self, places: Places) -> Path:
        return places.cache / "programs" / f"{self.name}-{self.key}" / self.name


def pinned(source: str, module: str) -> str:
    """The version of a module that a folder of src/ requires."""
    found = re.search(rf"^(?:require|)\s*{re.escape(module)} (v\S+)", (SOURCES / source / "go.mod").read_text(), re.M)
    if found is None:
        raise BedError(f"{SOURCES / source}/go.mod does not require {module}")
    return found.group(1)


def _kubernetes_flags() -> str:
    version = pinned("hyperkube", "k8s.io/kubernetes")
    major, minor = version.removeprefix("v").split(".")[:2]
    stamps = {"Version": version, "Major": major, "Minor": minor, "TreeState": "clean", "Commit": "0"}
    return " ".join(f"-X k8s.io/component-base/version.git{name}={value}" for name, value in stamps.items())


# Knative's programs cannot be one: each starts every informer that is linked into it, under its own rights.
KNATIVE: Final = ("controller", "autoscaler", "activator", "webhook", "queue")
PROGRAMS: Final = (
    Program("hyperkube", "hyperkube", flags=_kubernetes_flags()),
    Program("etcd", "etcd"),
    Program("coredns", "coredns"),
    Program("pause", "pause"),
    Program("hello", "hello"),
    *(Program(f"knative-{name}", "knative", f"knative.dev/serving/cmd/{name}") for name in KNATIVE),
    Program("knative-kourier", "kourier", "knative.dev/net-kourier/cmd/kourier"),
    Program("helm", "helm", "helm.sh/helm/v3/cmd/helm"),
    # Kubernetes is its only service discovery; the others would be most of its size.
    Program(
        "prometheus", "prometheus", "github.com/prometheus/prometheus/cmd/prometheus",
        tags="remove_all_sd,enable_kubernetes_sd",
    ),
    Program("envoy-gateway", "envoy-gateway", "github.com/envoyproxy/gateway/cmd/envoy-gateway"),
    Program("keda", "keda"),
    Program("lws", "lws", "sigs.k8s.io/lws/cmd"),
    Program("kwok", "kwok", "sigs.k8s.io/kwok/cmd/kwok"),
    Program("epp", "epp", "sigs.k8s.io/gateway-api-inference-extension/cmd/epp"),
)  # fmt: skip
HYPERKUBE_NAMES: Final = (
    "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubectl",
)  # fmt: skip


def program(name: str) -> Program:
    return next(each for each in PROGRAMS if each.name == name)


def missing(places: Places) -> list[Program]:
    return [each for each in PROGRAMS if not each.product(places).exists()]
