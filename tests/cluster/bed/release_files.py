"""The objects of Knative, KEDA, Envoy Gateway and others as files in the cache: upstream's own, fitted to the bed.

They come out of the very modules that the programs are built from; image names become local ones, and the patches in
manifests/ make them fit one small node. Keyed by everything that has a say.
"""

import hashlib
import json
import re
import shutil
import tempfile
from pathlib import Path
from typing import Final

from tests.cluster.bed.building import KEDA, module_folder, run
from tests.cluster.bed.envoy import ENVOY_KEY
from tests.cluster.bed.images import name_of
from tests.cluster.bed.own_kinds import FOLDER, write_own_definitions
from tests.cluster.bed.places import DNS_IP, GATEWAY_IP, HERE, INGRESS_IP, NODE_IP, Places
from tests.cluster.bed.programs import PROGRAMS, pinned, program
from tests.judges.helm import documents
from tests.judges.sources import PROMETHEUS_OPERATOR, without_prose

MANIFESTS: Final = HERE / "manifests"
KNATIVE: Final = "1.15.2"
OPERATOR: Final = ("knative.dev/operator", "v0.42.2")  # holds the release files of Knative and of its ingresses
LWS: Final = "sigs.k8s.io/lws"
ENVOY_GATEWAY: Final = "github.com/envoyproxy/gateway"
MONITORING_KINDS: Final = ("servicemonitors", "podmonitors", "prometheusrules")


def release_key() -> str:
    digest = hashlib.sha256(repr([(each.name, each.key) for each in PROGRAMS] + [ENVOY_KEY]).encode())
    own = sorted(path for path in (*MANIFESTS.rglob("*.yaml"), *FOLDER.glob("*.json")))
    for path in (*own, Path(__file__), HERE / "own_kinds.py"):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def release_folder(places: Places) -> Path:
    return places.cache / "manifests" / release_key()


def make_release_files(places: Places) -> None:
    folder = release_folder(places)
    if folder.exists():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        out, draft = Path(scratch) / "out", Path(scratch) / "draft"
        out.mkdir()
        shutil.copytree(MANIFESTS, draft)
        _own(draft, out)
        _knative(places, draft / "knative", out)
        _keda(places, draft / "keda", out)
        _lws(places, draft / "lws", out)
        _gateway(places, draft / "gateway", out)
        _other_kinds(out)
        out.rename(folder)


def filled(text: str) -> str:
    """Our own files with the addresses and image names of this bed."""
    values = {
        "DNS_IP": DNS_IP, "NODE_IP": NODE_IP, "INGRESS_IP": INGRESS_IP, "GATEWAY_IP": GATEWAY_IP,
        "COREDNS": name_of("coredns"), "GATEWAY": name_of("envoy-gateway"), "ENVOY": f"dev.local/envoy:{ENVOY_KEY}",
    }  # fmt: skip
    return re.sub(r"@([A-Z_]+)@", lambda found: values[found.group(1)], text)


def local_images(text: str) -> str:
    """Upstream's image names as those of images.py."""
    text = re.sub(
        r"(image|queue-sidecar-image): \S+/cmd/([a-z-]+)@sha256:[0-9a-f]+",
        lambda found: f"{found.group(1)}: {name_of('knative-' + found.group(2))}", text,
    )  # fmt: skip
    text = re.sub(r"image: \S+/envoy:.*", f"image: dev.local/envoy:{ENVOY_KEY}", text)
    text = re.sub(r"image: \S+/lws:.*", f"image: {name_of('lws')}", text)
    return re.sub(r"image: \S+/keda[a-z-]*:.*", f"image: {name_of('keda')}", text)


def _own(draft: Path, out: Path) -> None:
    for path in draft.rglob("*.yaml"):
        path.write_text(filled(path.read_text()))
    for name in ("coredns.yaml", "prometheus.yaml", "gateway/gateway.yaml"):
        shutil.copy(draft / name, out / Path(name).name)


def _knative(places: Places, draft: Path, out: Path) -> None:
    data = module_folder(*OPERATOR) / "cmd/operator/kodata"
    serving = data / "knative-serving" / KNATIVE
    kourier = data / "ingress" / KNATIVE.rpartition(".")[0] / "kourier/kourier.yaml"
    (draft / "serving-core.yaml").write_text(local_images((serving / "2-serving-core.yaml").read_text()))
    (draft / "kourier.yaml").write_text(local_images(kourier.read_text()))
    (out / "knative-crds.yaml").write_text(_terse((serving / "1-serving-crds.yaml").read_text()))
    (out / "knative.yaml").write_text(_kustomize(places, draft))


def _keda(places: Places, draft: Path, out: Path) -> None:
    upstream = module_folder(KEDA, pinned("keda", KEDA)) / "config/default"
    (draft / "keda.yaml").write_text(local_images(_kustomize(places, upstream)))
    (out / "keda.yaml").write_text(_kustomize(places, draft))


def _lws(places: Places, draft: Path, out: Path) -> None:
    upstream = module_folder(LWS, pinned("lws", LWS)) / "config/default"
    (draft / "lws.yaml").write_text(local_images(_kustomize(places, upstream)))
    (out / "lws.yaml").write_text(_terse(_kustomize(places, draft)))


def _gateway(places: Places, draft: Path, out: Path) -> None:
    """The chart's values lie in the module as a template of their own; ours replace the two variables in it."""
    chart = module_folder(ENVOY_GATEWAY, pinned("envoy-gateway", ENVOY_GATEWAY)) / "charts/gateway-helm"
    copy = draft / "chart"
    shutil.copytree(chart, copy, copy_function=shutil.copyfile)
    copy.chmod(0o755)
    (copy / "values.yaml").write_text((chart / "values.tmpl.yaml").read_text())
    definitions = sorted((chart / "charts/crds/crds").rglob("*.yaml"))
    (out / "gateway-crds.yaml").write_text(_terse("\n---\n".join(path.read_text() for path in definitions)))
    helm = str(program("helm").product(places))
    words = ["template", "eg", str(copy), "--namespace=envoy-gateway-system", f"--values={draft / 'values.yaml'}"]
    namespace = "apiVersion: v1\nkind: Namespace\nmetadata: {name: envoy-gateway-system}\n---\n"
    objects = run([helm, *words, "--skip-crds", "--kube-version=1.34.4"], draft)
    (out / "envoy-gateway.yaml").write_text(namespace + objects)


def _other_kinds(out: Path) -> None:
    folder = module_folder(PROMETHEUS_OPERATOR.path, PROMETHEUS_OPERATOR.version) / "example/prometheus-operator-crd"
    texts = [(folder / f"monitoring.coreos.com_{kind}.yaml").read_text() for kind in MONITORING_KINDS]
    (out / "monitoring-crds.yaml").write_text(_terse("\n---\n".join(texts)))
    write_own_definitions(out / "own-crds.yaml")


def _terse(text: str) -> str:
    """Definitions without their prose: four megabytes of it would take the API server seconds."""
    return "".join(f"---\n{json.dumps(without_prose(each))}\n" for each in documents(text))


def _kustomize(places: Places, folder: Path) -> str:
    return run([str(program("hyperkube").product(places)), "kubectl", "kustomize", str(folder)], folder)
