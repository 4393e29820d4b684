"""The traces of bench/simulation.py on Knative, and on raw Deployments with KEDA, of the cluster of KUBECONFIG.

Both modes get each trace at the same time: the model sleeps, so that they do not disturb each other. Six traces, three
runs each, take about 50 minutes.
"""

import asyncio
import json
import sys
import threading
import time
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

import numpy as np
from tests.cluster.own_objects import our_cluster
from tests.cluster.real_cluster import Cluster, seconds_until
from tests.cluster.real_helm import require_gateway

from bench.cluster.pod_lifetimes import PodEvent, lifetimes, usage
from bench.cluster.scalers import BEHAVIOR, HURRY, KEDA, hurry
from bench.cluster.subjects import REQUESTS, deploy_documents
from bench.simulation import BARS, LEAD_S, MODEL, Figures, compare, latency_figures, replay, trace_of
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
SEEDS: Final = 9
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
    """Listen to the pods of a namespace; a connection that ends or is lost is continued where it was."""
    from kubernetes import client, watch
    from urllib3.exceptions import HTTPError

    api: Any = client.CoreV1Api(our_cluster(cluster).connection.api)
    stream, events, stopped = watch.Watch(), list[PodEvent](), threading.Event()

    def listen() -> None:
        while not stopped.is_set():
            try:
                for event in stream.stream(api.list_namespaced_pod, namespace, timeout_seconds=WATCH_S):
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


def rest(subjects: Sequence[Subject]) -> None:
    for subject in subjects:
        seconds_until(partial(_idle, subject), f"{subject.mode} at zero", REST_S)


def _idle(subject: Subject) -> bool:
    return not any(pod.deleted == float("inf") for pod in lifetimes(subject.events))


async def _together(calls: Iterable[Coroutine[Any, Any, list[float]]]) -> list[list[float]]:
    return await asyncio.gather(*calls)


def measured(subjects: Sequence[Subject], trace: Trace) -> dict[str, Figures]:
    """Replay a trace against all subjects at once, each at zero; return the figures by mode."""
    rest(subjects)
    begin = time.monotonic() + LEAD_S
    replays = (replay(each.url, trace, each.headers) for each in subjects)
    found = {}
    for subject, latencies in zip(subjects, asyncio.run(_together(replays)), strict=True):
        pods = usage(lifetimes(subject.events), begin, trace.seconds)
        found[subject.mode] = {**pods, **latency_figures(latencies)}
    return found


def profiles(subjects: Sequence[Subject]) -> dict[str, Profile]:
    """Measure each subject at zero, STARTS times: a request that waits for a cold start, and one after it."""
    pairs: dict[str, list[list[float]]] = {subject.mode: [] for subject in subjects}
    for number in range(STARTS):
        rest(subjects)
        print(f"cold start {number + 1} of {STARTS}", file=sys.stderr, flush=True)
        for subject, pair in zip(subjects, asyncio.run(_together(map(_cold_and_warm, subjects))), strict=True):
            pairs[subject.mode].append(pair)
    return {mode: profile(each) for mode, each in pairs.items()}


async def _cold_and_warm(subject: Subject) -> list[float]:
    single = Trace(np.zeros(1))
    return [(await replay(subject.url, single, subject.headers))[0] for _ in range(2)]


def profile(pairs: Sequence[Sequence[float]]) -> Profile:
    """Return the profile of seconds in pairs: of a request that waits for a cold start, and of the one after it."""
    warm = tuple(round(after, 4) for _, after in pairs)
    starts = tuple(round(max(0.0, cold - median(warm)), 4) for cold, _ in pairs)
    return Profile(ServiceTimes(warm), {"process": ColdStart({"total": starts})})


def predicted(mode: str, measured_profile: Profile, trace: Trace) -> Figures:
    """Return what the simulation says of the same requests, document and profile: medians over SEEDS.

    A seed decides which of the measured cold starts comes when, and when the autoscaler's clock ticks.
    """
    with TemporaryDirectory() as folder:
        simulated = scenario(mode, Path(folder))
    figures = [simulate(simulated, measured_profile, trace, seed=seed).figures() for seed in range(SEEDS)]
    return {name: float(median(each[name] for each in figures)) for name in (*BARS, "requests")}


def predicted_again(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return a result with what the simulation predicts now, from the profiles and for the runs that it has."""
    modes = {}
    with TemporaryDirectory() as folder:
        for mode, each in result["modes"].items():
            file = Path(folder) / "profile.json"
            file.write_text(json.dumps(each["profile"]))
            runs = {name: row["runs"] for name, row in each["traces"].items()}
            modes[mode] = {**each, "traces": compare(runs, partial(predicted, mode, read_profile(file)))}
    return {**result, "modes": modes}


def run(cluster: Cluster, names: Sequence[str], runs: int) -> dict[str, Any]:
    """Return profile and traces of each mode. A run with a failed request is reported, and left out."""
    require_gateway(cluster)
    with ExitStack() as stack:
        subjects = [stack.enter_context(deployed(cluster, mode)) for mode in MODES]
        found = profiles(subjects)
        repeated: dict[str, dict[str, list[Figures]]] = {mode: {name: [] for name in names} for mode in MODES}
        for number in range(runs):
            for name in names:
                print(f"run {number + 1}: {name}", file=sys.stderr, flush=True)
                try:
                    for mode, figures in measured(subjects, trace_of(name)).items():
                        repeated[mode][name].append(figures)
                except (RuntimeError, OSError, AssertionError) as error:
                    print(f"run {number + 1}: {name}: {error!r}", file=sys.stderr, flush=True)
    return {
        mode: {
            "profile": found[mode].to_dict(),
            "traces": compare(
                {name: each for name, each in traces.items() if each}, partial(predicted, mode, found[mode])
            ),
        }
        for mode, traces in repeated.items()
    }
