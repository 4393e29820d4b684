"""The traces of bench/simulation.py on Knative, and on raw Deployments with KEDA, of the cluster of KUBECONFIG.

Both modes get each trace in turns, so that only one starts pods: a mode's pods end while the other has the trace. Six
traces, three runs each, take about 50 minutes.
"""

import asyncio
import json
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple
from urllib.request import Request, urlopen

import numpy as np
from tests.cluster.own_objects import our_cluster
from tests.cluster.real_cluster import Cluster, seconds_until
from tests.cluster.real_helm import require_gateway

from bench.cluster.pod_lifetimes import PodEvent, lifetimes, listed, usage
from bench.cluster.scalers import BEHAVIOR, HURRY, KEDA, hurry
from bench.cluster.subjects import REQUESTS, deploy_documents
from bench.simulation import BARS, LEAD_S, MODEL, Figures, compare, latency_figures, replay, trace_of
from pilotlight.contract import METRIC_PROCESS_CPU
from pilotlight.k8s.manifest import Manifest
from pilotlight.release.plan_and_render import Sources, plan_documents, read
from pilotlight.simulation.scenario import Scenario, scenario_of
from pilotlight.simulation.service_times import ColdStart, Profile, ServiceTimes, read_profile
from pilotlight.simulation.simulate import simulate
from pilotlight.simulation.trace import Trace

Json = Any
SERVICE: Final = "nap"
WINDOW_S: Final = 6  # the shortest that Knative allows
MODES: Final[Mapping[str, Mapping[str, str]]] = {
    "knative": {
        "serving.kserve.io/deploymentMode": "Serverless", "autoscaling.knative.dev/window": f"{WINDOW_S}s",
        # A panic window of a second sees a load or none, by the phases of two of Knative's clocks.
        "autoscaling.knative.dev/panic-window-percentage": "50.0",
    },
    "keda": KEDA,
}  # fmt: skip
PATH: Final = f"/v2/models/{SERVICE}/infer"
MOUNTED: Final = "/models/nap"
STARTS: Final = 5  # from which the profile has its cold starts
REST_S: Final = 180.0
SEEDS: Final = 101
WATCH_S: Final = 5  # after which a watch begins again, so that it can end


def document(mode: str) -> dict[str, Json]:
    """Return the InferenceService of bench/simulation.py with its model in a ConfigMap."""
    model = {
        "modelFormat": {"name": "python"}, "protocolVersion": "v2", "storageUri": f"file://{MOUNTED}",
        "resources": {"requests": {**REQUESTS, "cpu": "20m"}, "limits": {"memory": "1Gi"}},
        "volumeMounts": [{"name": "nap", "mountPath": MOUNTED}],
    }  # fmt: skip
    predictor = {
        "minReplicas": 0, "maxReplicas": 4, "scaleMetric": "concurrency", "scaleTarget": 2, "model": model,
        "volumes": [{"name": "nap", "configMap": {"name": "nap"}}],
        **({"autoScaling": {"behavior": BEHAVIOR}} if mode == "keda" else {}),
    }  # fmt: skip
    return {
        "apiVersion": "serving.kserve.io/v1beta1", "kind": "InferenceService",
        "metadata": {"name": SERVICE, "annotations": dict(MODES[mode])}, "spec": {"predictor": predictor},
    }  # fmt: skip


def scenario(mode: str, folder: Path) -> Scenario:
    """Return what a simulation makes of the document, with the change of the ScaledObject that the cluster gets too."""
    file = folder / f"{mode}.json"
    file.write_text(json.dumps(document(mode)))
    planned = plan_documents(read(Sources([str(file)])))
    manifests = [
        Manifest({**each.document, "spec": {**each.document["spec"], **HURRY}}) if each.kind == "ScaledObject" else each
        for each in planned.manifests()
    ]
    return scenario_of(planned.plans[0], manifests, embedded=False)


class Subject(NamedTuple):
    """A service on the cluster: where it responds, and what was heard of its pods."""

    mode: str
    url: str
    headers: Mapping[str, str]
    events: list[PodEvent]


@contextmanager
def deployed(cluster: Cluster, mode: str) -> Iterator[Subject]:
    """Deploy the service of a mode, and watch its pods."""
    namespace = cluster.new_namespace(f"bench-simulated-{mode}")
    try:
        files = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "nap"}, "data": {"model.py": MODEL}}
        cluster.apply(files, namespace=namespace)
        with watched(cluster, namespace) as events:
            host = deploy_documents(cluster, namespace, document(mode))
            if mode == "keda":
                hurry(cluster, namespace, SERVICE)
            base = cluster.ingress if mode == "knative" else cluster.gateway
            headers = {"Host": host, "Content-Type": "application/json"}
            yield Subject(mode, base + PATH, headers, events)
    finally:
        cluster.kubectl("delete", "namespace", namespace, "--wait=false")


@contextmanager
def watched(cluster: Cluster, namespace: str) -> Iterator[list[PodEvent]]:
    """Listen to the pods of a namespace. Each watch begins with a list: pods may have ended since the last one."""
    from kubernetes import client, watch
    from urllib3.exceptions import HTTPError

    api: Any = client.CoreV1Api(our_cluster(cluster).connection.api)
    stream, events, stopped = watch.Watch(), list[PodEvent](), threading.Event()

    def listen() -> None:
        while not stopped.is_set():
            try:
                found = api.list_namespaced_pod(namespace)
                events.extend(listed(events, {pod.metadata.name for pod in found.items}, time.monotonic()))
                since = found.metadata.resource_version
                for event in stream.stream(
                    api.list_namespaced_pod, namespace, resource_version=since, timeout_seconds=WATCH_S
                ):
                    events.append(PodEvent(time.monotonic(), event["type"], event["object"].metadata.name))
            except (HTTPError, client.ApiException) as error:
                print(f"watch on pods: {error!r}", file=sys.stderr, flush=True)
                stopped.wait(1.0)

    thread = threading.Thread(target=listen)
    thread.start()
    try:
        yield events
    finally:
        stopped.set()
        stream.stop()
        thread.join()


def rest(subject: Subject) -> None:
    seconds_until(partial(_idle, subject), f"{subject.mode} at zero", REST_S)


def _idle(subject: Subject) -> bool:
    return not any(pod.deleted == float("inf") for pod in lifetimes(subject.events))


def measured(subject: Subject, trace: Trace) -> Figures:
    """Replay a trace against a subject at zero; return the figures."""
    rest(subject)
    begin = time.monotonic() + LEAD_S
    latencies = asyncio.run(replay(subject.url, trace, subject.headers))
    return {**usage(lifetimes(subject.events), begin, trace.seconds), **latency_figures(latencies)}


def profiles(subjects: Sequence[Subject]) -> dict[str, Profile]:
    """Measure each subject at zero, STARTS times: a request that waits for a cold start, one after it, and the CPU."""
    starts: dict[str, list[MeasuredStart]] = {subject.mode: [] for subject in subjects}
    for number in range(STARTS):
        for subject in subjects:
            rest(subject)
            print(f"cold start {number + 1} of {STARTS}: {subject.mode}", file=sys.stderr, flush=True)
            starts[subject.mode].append(measured_start(subject))
    return {mode: profile(each) for mode, each in starts.items()}


class MeasuredStart(NamedTuple):
    """Seconds of a request that waits for a cold start and of the one after it, CPU time of the process until then."""

    cold_s: float
    warm_s: float
    cpu_s: float


def measured_start(subject: Subject) -> MeasuredStart:
    single = Trace(np.zeros(1))
    cold, warm = (asyncio.run(replay(subject.url, single, subject.headers))[0] for _ in range(2))
    request = Request(subject.url.removesuffix(PATH) + "/metrics", headers=dict(subject.headers))
    with urlopen(request, timeout=REST_S) as response:
        page = response.read().decode()
    (cpu,) = (line.split()[1] for line in page.splitlines() if line.startswith(f"{METRIC_PROCESS_CPU} "))
    return MeasuredStart(cold, warm, float(cpu))


def profile(measured_starts: Sequence[MeasuredStart]) -> Profile:
    """Return the profile of these starts: each took what its request took longer than one after a start."""
    warm = tuple(round(each.warm_s, 4) for each in measured_starts)
    starts = tuple(round(max(0.0, each.cold_s - median(warm)), 4) for each in measured_starts)
    cpu_s = round(median(each.cpu_s for each in measured_starts), 4)
    return Profile(ServiceTimes(warm), {"process": ColdStart({"total": starts}, cpu_s)})


def predicted(mode: str, cores: int, measured_profile: Profile, trace: Trace) -> Figures:
    """Return what the simulation says of the same requests, document and profile: medians over SEEDS.

    A seed decides which of the measured cold starts comes when, and when the autoscaler's clock ticks.
    """
    with TemporaryDirectory() as folder:
        simulated = replace(scenario(mode, Path(folder)), cores=cores)
    figures = [simulate(simulated, measured_profile, trace, seed=seed).figures() for seed in range(SEEDS)]
    return {name: float(median(each[name] for each in figures)) for name in (*BARS, "requests")}


def predicted_again(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return a result with what the simulation predicts now, from the profiles and for the runs that it has."""
    modes, cores = {}, int(result["machine"]["cores"])
    with TemporaryDirectory() as folder:
        for mode, each in result["modes"].items():
            file = Path(folder) / "profile.json"
            file.write_text(json.dumps(each["profile"]))
            runs = {name: row["runs"] for name, row in each["traces"].items()}
            modes[mode] = {**each, "traces": compare(runs, partial(predicted, mode, cores, read_profile(file)))}
    return {**result, "modes": modes}


def run(cluster: Cluster, names: Sequence[str], runs: int, cores: int) -> dict[str, Any]:
    """Return profile and traces of each mode. A run with a failed request is reported, and left out.

    A trace that is named twice has twice the runs. `cores`: of the node.
    """
    require_gateway(cluster)
    with ExitStack() as stack:
        subjects = [stack.enter_context(deployed(cluster, mode)) for mode in MODES]
        found = profiles(subjects)
        repeated: dict[str, dict[str, list[Figures]]] = {mode: {name: [] for name in names} for mode in MODES}
        for number in range(runs):
            for name in names:
                for subject in subjects:
                    try:
                        figures = measured(subject, trace_of(name))
                        repeated[subject.mode][name].append(figures)
                        outcome = json.dumps(figures)
                    except (ExceptionGroup, RuntimeError, OSError, AssertionError) as error:
                        outcome = repr(error)
                    print(f"run {number + 1}: {name}: {subject.mode}: {outcome}", file=sys.stderr, flush=True)
    return {
        mode: {
            "profile": found[mode].to_dict(),
            "traces": compare(
                {name: each for name, each in traces.items() if each}, partial(predicted, mode, cores, found[mode])
            ),
        }
        for mode, traces in repeated.items()
    }
