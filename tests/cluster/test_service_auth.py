"""Tokens of a service on a real cluster: through the ingress, the cluster-local Service and the pod's own address."""

import hashlib
from typing import Final

import pytest
from tests.cluster.real_cluster import Cluster, seconds_until
from tests.cluster.requests import BODY
from tests.cluster.scenarios import Story, document

TOKEN, OTHER = "correct-horse", "battery-staple"
# Sends the request of the test from within a pod, and prints the status.
CLIENT: Final = """
import sys, urllib.error, urllib.request
url, token, body = sys.argv[1:4]
headers = {"Content-Type": "application/json", **({"Authorization": "Bearer " + token} if token else {})}
try:
    print(urllib.request.urlopen(urllib.request.Request(url, body.encode(), headers), timeout=120).status)
except urllib.error.HTTPError as error:
    print(error.code)
"""


def closed(name: str, mode: str, token: str, *, scaler: str = "hpa", least: int = 1) -> str:
    digest = hashlib.sha256(token.encode()).hexdigest()
    annotations = (f'pilotlight.dev/auth-tokens-sha256: "{digest}"',)
    return document(name, mode=mode, scaler=scaler, annotations=annotations, least=least)


class Closed(Story):
    def __init__(self, cluster: Cluster, namespace: str, mode: str, name: str) -> None:
        super().__init__(cluster, namespace, name)
        self.mode = mode
        self.host = ""

    def deploy(self, text: str, *words: str) -> str:
        url = super().deploy(text, *words)
        self.host = url.removeprefix("http://")
        return url

    @property
    def path(self) -> str:
        return f"/v2/models/{self.name}/infer"

    def outside(self, token: str) -> int:
        """Status of a request through the ingress."""
        through = self.cluster.ingress if self.mode == "Serverless" else self.cluster.gateway
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return self.cluster.ask(self.host, self.path, BODY, headers=headers, through=through, timeout=120).status

    def inside(self, address: str, token: str) -> int:
        """Status of a request from a pod of the cluster."""
        pod = self.pods()[0]
        container = pod["spec"]["containers"][0]["name"]
        command = ("exec", "-n", self.namespace, pod["metadata"]["name"], "-c", container, "--", "python", "-c", CLIENT)
        return int(self.cluster.kubectl(*command, f"http://{address}{self.path}", token, BODY.decode()))

    def addresses(self) -> dict[str, str]:
        place = f"{self.namespace}.svc.cluster.local"
        services = {name: f"{name}.{place}" for name in (self.name, f"{self.name}-predictor")}
        return {**services, "pod": f"{self.pods()[0]['status']['podIP']}:8080"}


@pytest.mark.parametrize("mode", ["Serverless", "Standard"])
def test_a_token_is_needed_at_the_ingress_the_service_and_the_pod(cluster: Cluster, namespace: str, mode: str) -> None:
    story = Closed(cluster, namespace, mode, "closed-" + mode.lower())
    story.deploy(closed(story.name, mode, TOKEN))
    seconds_until(lambda: story.outside(TOKEN) == 200, "the service answers who has the token")
    for token in ("", OTHER, hashlib.sha256(TOKEN.encode()).hexdigest()):
        assert story.outside(token) == 401
    for name, address in story.addresses().items():
        seconds_until(lambda at=address: story.inside(at, TOKEN) == 200, f"{name} answers inside the cluster")
        assert story.inside(address, "") == 401, name
        assert story.inside(address, OTHER) == 401, name
    assert "pilotlight_" in story._metrics(story.pods()[0]), "metrics stay open to Prometheus"

    revisions = story.shares()
    pods = {pod["metadata"]["uid"] for pod in story.pods()}
    story.deploy(closed(story.name, mode, OTHER))
    seconds_until(lambda: story.outside(OTHER) == 200, "the new token passes, once the kubelet has written it")
    assert story.outside(TOKEN) == 401
    assert story.shares() == revisions, "a rotated token is no new revision"
    assert pods & {pod["metadata"]["uid"] for pod in story.pods()}, "nor a new pod"
    story.do("delete", story.name)
    assert cluster.get("secret", f"{story.name}-access", "-n", namespace) is None


@pytest.mark.usefixtures("gateway")
def test_a_service_at_zero_is_not_woken_without_the_token(cluster: Cluster, namespace: str) -> None:
    """Our gateway holds requests for it and checks them first."""
    story = Closed(cluster, namespace, "Standard", "closed-zero")
    story.deploy(closed(story.name, "Standard", TOKEN, scaler="keda", least=0), "--no-wait")
    seconds_until(lambda: story.outside("") == 401, "the gateway knows the service")
    assert story.outside(OTHER) == 401
    seconds_until(lambda: story.outside(TOKEN) == 200, "the token wakes it")
    assert story.inside(story.addresses()["pod"], "") == 401
    story.do("delete", story.name, "--no-wait")
