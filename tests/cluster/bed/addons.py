"""What the bed adds to Kubernetes: DNS, Knative with its ingress, KEDA with Prometheus, LeaderWorkerSet, Envoy Gateway,
kinds of others.

Each is a step of `up` that may be repeated. Objects come from release_files.py, images are imported before.
"""

from pathlib import Path
from typing import Any, Final

import yaml
from tests.cluster.bed.control_plane import put
from tests.cluster.bed.kubectl import apply, apply_text, available, kubectl, succeeds
from tests.cluster.bed.places import GATEWAY_IP, NODE_IP, BedError, Places
from tests.cluster.bed.processes import start, until
from tests.cluster.bed.release_files import release_folder, release_key

PROBE_S: Final = 5
PROBE_FAILURES: Final = 12
KINDS_S: Final = 180.0
GATEWAY_SETTINGS: Final = "envoy-gateway.yaml"


def kinds(places: Places) -> None:
    """All CustomResourceDefinitions first: whoever watches such kinds finds them."""
    done = places.run / f"kinds-{release_key()}"  # thousands of lines that the API server need not read twice
    if done.exists():
        return
    for name in ("knative-crds", "gateway-crds", "monitoring-crds", "own-crds"):
        apply(places, release_folder(places) / f"{name}.yaml")
    # One that is brand new has no conditions at all, over which kubectl stumbles.
    words = ("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
    try:
        until("kinds are established", KINDS_S, lambda: succeeds(places, *words))
    except BedError:
        kubectl(places, *words)  # which tells what is wrong
    done.touch()


def objects(places: Places) -> None:
    for name in ("coredns", "knative", "keda", "lws", "prometheus", "envoy-gateway", "gateway"):
        apply_text(places, patient((release_folder(places) / f"{name}.yaml").read_text()))


def patient(manifests: str) -> str:
    """With probes that a busy machine of two cores passes too: who fails one has no endpoints, and clients of the
    ingress are then refused. And without leases, which an API server that restarts lets run out."""
    documents = [document for document in yaml.safe_load_all(manifests) if document]  # kubectl takes no empty ones
    for document in documents:
        if GATEWAY_SETTINGS in (document.get("data") or {}):
            _lead_alone(document["data"])
        template = (document.get("spec") or {}).get("template") or {}
        for container in (template.get("spec") or {}).get("containers") or ():
            for kind in ("readinessProbe", "livenessProbe"):
                if kind in container:
                    container[kind] |= {"timeoutSeconds": PROBE_S, "failureThreshold": PROBE_FAILURES}
    return yaml.safe_dump_all(documents, sort_keys=False)


def _lead_alone(data: dict[str, str]) -> None:
    """Envoy Gateway that lost its lease does nothing more, until a probe ends it minutes later."""
    settings = yaml.safe_load(data[GATEWAY_SETTINGS])
    settings["provider"]["kubernetes"]["leaderElection"] = {"disable": True}
    data[GATEWAY_SETTINGS] = yaml.safe_dump(settings, sort_keys=False)


def dns_ready(places: Places) -> None:
    available(places, "kube-system")


def knative_ready(places: Places) -> None:
    available(places, "knative-serving")
    available(places, "kourier-system")


def keda_ready(places: Places) -> None:
    available(places, "keda")
    kubectl(places, "wait", "--for=condition=Available", "apiservice/v1beta1.external.metrics.k8s.io", "--timeout=180s")


def lws_ready(places: Places) -> None:
    available(places, "lws-system")


def gateway_ready(places: Places) -> None:
    available(places, "envoy-gateway-system")
    words = ("wait", "--for=condition=Programmed", "gateway/pilotlight", "--timeout=300s")
    kubectl(places, "-n", "pilotlight-system", *words)


def prometheus(places: Places) -> None:
    """A daemon beside the cluster, so that a test can stop and start it while pods go on."""
    configuration = places.etc / "prometheus.yaml"
    put(configuration, yaml.safe_dump(_scraping(places.kubeconfig), sort_keys=False))
    start(places, "prometheus", prometheus_command(places))


def prometheus_command(places: Places) -> list[str | Path]:
    return [
        places.bin / "prometheus", f"--config.file={places.etc}/prometheus.yaml", "--log.level=warn",
        f"--storage.tsdb.path={places.run}/prometheus", "--storage.tsdb.retention.time=1h",
        f"--web.listen-address={NODE_IP}:9090",
    ]  # fmt: skip


def _scraping(kubeconfig: Path) -> dict[str, Any]:
    """Every pod annotated prometheus.io/scrape: "true" (and /port, /path), once a second."""
    pod = "__meta_kubernetes_pod"
    note = f"{pod}_annotation_prometheus_io"
    rules: list[dict[str, Any]] = [
        {"source_labels": [f"{note}_scrape"], "regex": "true", "action": "keep"},
        {"source_labels": [f"{pod}_phase"], "regex": "Running", "action": "keep"},
        {"source_labels": [f"{pod}_ip", f"{note}_port"], "regex": "(.+);(.+)", "replacement": "$1:$2",
         "target_label": "__address__"},
        {"source_labels": [f"{note}_path"], "regex": "(.+)", "target_label": "__metrics_path__"},
        {"source_labels": ["__meta_kubernetes_namespace"], "target_label": "namespace"},
        {"source_labels": [f"{pod}_name"], "target_label": "pod"},
    ]  # fmt: skip
    discovery = [{"role": "pod", "kubeconfig_file": str(kubeconfig)}]
    job = {"job_name": "pods", "kubernetes_sd_configs": discovery, "relabel_configs": rules}
    return {"global": {"scrape_interval": "1s", "scrape_timeout": "1s"}, "scrape_configs": [job]}


def addresses() -> dict[str, str]:
    return {"gateway": f"http://{GATEWAY_IP}", "prometheus": f"http://{NODE_IP}:9090"}
