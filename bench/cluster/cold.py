"""0 → first byte through Knative: one server after the other is woken, again and again, and each start taken apart.

All three sleep at the beginning of a round, and rounds go forth and back, so that noise hits all of them alike.
"""

import http.client
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from tests.cluster.real_cluster import Cluster, seconds_until

from bench.cluster.phases import Instants, first_event, line_time, own_phases, phases
from bench.cluster.subjects import Subject
from bench.load import BenchError
from bench.rounds import Result, note_failure

ZERO_S: Final = 120.0
NOTED_S: Final = 20.0
SETTLE_S: Final = 1.0  # between two starts: the pod that has just started still has work to do
ANSWER_S: Final = 60.0


@dataclass(slots=True)
class Arrivals:
    """When each pod of the namespace was first heard of: the API gives its creation in whole seconds only."""

    times: dict[str, float] = field(default_factory=dict)

    def read(self, lines: Iterator[str]) -> None:
        for line in lines:
            self.times.setdefault(line.strip().removeprefix("pod/"), time.time())


@contextmanager
def watched_pods(cluster: Cluster, namespace: str) -> Iterator[Arrivals]:
    command = [cluster.kubectl_path, f"--kubeconfig={cluster.kubeconfig}", "-n", namespace]
    heard = Arrivals()
    with subprocess.Popen([*command, "get", "pods", "--watch", "-o", "name"], stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout
        reader = threading.Thread(target=heard.read, args=(run.stdout,))
        reader.start()
        try:
            yield heard
        finally:
            run.terminate()
            reader.join()


def measure(cluster: Cluster, namespace: str, subjects: Sequence[Subject], starts: int, result: Result) -> None:
    """A start that could not be taken apart is noted, and its figures are left out."""
    with watched_pods(cluster, namespace) as heard:
        for number in range(starts):
            seconds_until(lambda: not pods(cluster, namespace), "all at zero", ZERO_S)
            for subject in subjects if number % 2 == 0 else tuple(reversed(subjects)):
                time.sleep(SETTLE_S)
                try:
                    figures = start(cluster, namespace, subject, heard)
                except (BenchError, OSError, http.client.HTTPException) as error:
                    note_failure(result, f"{subject.title}, start {number + 1}: {error}")
                    continue
                result.add(subject.name, figures)
                shown = "  ".join(f"{name} {value:.3f}" for name, value in figures.items())
                print(f"start {number + 1}/{starts}  {subject.name:10}  {shown}", file=sys.stderr)


def start(cluster: Cluster, namespace: str, subject: Subject, heard: Arrivals) -> dict[str, float]:
    known, busy = set(heard.times), os.getloadavg()[0]
    asked, answered = ask(cluster, f"{subject.service}.{namespace}.{cluster.domain}", subject)
    fresh = [pod for pod in set(heard.times) - known if pod.startswith(subject.service)]
    if len(fresh) != 1:
        raise BenchError(f"{len(fresh)} pods came for one request")
    pod = fresh[0]
    log = cluster.kubectl("-n", namespace, "logs", pod, "-c", subject.container, "--timestamps")
    ready = line_time(log, subject.ready)
    scheduled, started = noted(cluster, namespace, pod, subject.container)
    if ready is None:
        raise BenchError("its log does not say when it was ready")
    at = Instants(asked, heard.times[pod], scheduled, started, ready, answered)
    return {**phases(at), **own_phases(log), "load": busy}


def noted(cluster: Cluster, namespace: str, pod: str, container: str) -> tuple[float, float]:
    """When it was scheduled and its container started; the kubelet sends its events a little late."""
    deadline = time.monotonic() + NOTED_S
    while time.monotonic() < deadline:
        events = cluster.get("events", "-n", namespace, f"--field-selector=involvedObject.name={pod}")["items"]
        scheduled, started = first_event(events, "Scheduled"), first_event(events, "Started", container)
        if scheduled is not None and started is not None:
            return scheduled, started
        time.sleep(0.2)
    raise BenchError(f"no event tells when {pod} started")


def ask(cluster: Cluster, host: str, subject: Subject) -> tuple[float, float]:
    """When the request was sent, and when the first byte of its answer came."""
    place = urlsplit(cluster.ingress)
    assert place.hostname
    connection = http.client.HTTPConnection(place.hostname, place.port or 80, timeout=ANSWER_S)
    headers = {"Host": host, "Content-Type": "application/json"}
    try:
        asked = time.time()
        connection.request("POST" if subject.body else "GET", subject.path, subject.body, headers)
        answer = connection.getresponse()
        answered = time.time()
        body = answer.read()
    finally:
        connection.close()
    if answer.status != 200:
        raise BenchError(f"it answered {answer.status}: {body[:200]!r}")
    return asked, answered


def pods(cluster: Cluster, namespace: str) -> list[str]:
    return cluster.kubectl("-n", namespace, "get", "pods", "-o", "name").split()
