"""A service as an endpoint: its name, its replicas, what its health means, and what no container alone can do."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.platform.targets.local.rendering import document, rendered

from pilotlight.errors import PlatformError
from pilotlight.targets.local.manifests.service_spec_types import ContainerSpec, Probe
from pilotlight.targets.remote.endpoint import NAME_LIMIT, endpoint_name, endpoint_of, health_path, read_health

OURS = ContainerSpec("main", "pilotlight/predictor:1", (), (), {}, 8080)
THEIRS = ContainerSpec("main", "example.com/server:1", (), (), {}, 8000, readiness=Probe("/health", 8000))
LABEL = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", fullmatch=True)


@given(LABEL, LABEL, st.uuids())
def test_a_name_is_one_that_every_cloud_accepts(namespace: str, name: str, home: Any) -> None:
    made = endpoint_name((namespace, name), str(home))
    assert re.fullmatch(rf"[a-z][a-z0-9-]{{0,{NAME_LIMIT - 1}}}", made)
    assert made == endpoint_name((namespace, name), str(home))


def test_names_differ_by_home_and_namespace() -> None:
    assert endpoint_name(("default", "iris"), "a").startswith("iris-")
    assert len({endpoint_name((space, "iris"), home) for space in ("default", "other") for home in ("a", "b")}) == 4


@pytest.mark.parametrize(
    ("predictor", "replicas"),
    [
        ({"minReplicas": 2}, (2, 2, 0.0)),
        ({"maxReplicas": 3}, (1, 3, 0.0)),
        ({"maxReplicas": 3, "scaleMetric": "rps", "scaleTarget": 10}, (1, 3, 420.0)),
    ],
)
@pytest.mark.parametrize("raw", [False, True])
def test_replicas_are_those_of_the_autoscaler(
    predictor: dict[str, Any], replicas: tuple[int, int, float], raw: bool, tmp_path: Path
) -> None:
    endpoint = endpoint_of(rendered(tmp_path, document(raw=raw, **predictor)), {}, "home")
    least, most, rate = replicas
    assert (endpoint.replicas, endpoint.max_replicas) == (least, most)
    assert endpoint.per_minute == (rate and rate / (0.7 if raw else 1))  # Knative uses 70 % of a target
    assert "PILOTLIGHT_REVISION" not in endpoint.container.env  # another one would be another container


def test_overrides_change_the_replicas(tmp_path: Path) -> None:
    manifests = rendered(tmp_path, document())
    endpoint = endpoint_of(manifests, {"iris-predictor": {"minReplicas": 2, "maxReplicas": 2}}, "home")
    assert (endpoint.replicas, endpoint.max_replicas) == (2, 2)


def test_several_workloads_and_access_rules_are_refused(tmp_path: Path) -> None:
    two = document()
    two["spec"]["transformer"] = {"containers": [{"name": "kserve-container", "image": "pilotlight/predictor:1"}]}
    with pytest.raises(
        PlatformError, match="default/iris has 2 workloads, but it is not behind the Pilotlight gateway"
    ):
        endpoint_of(rendered(tmp_path, two), {}, "home")
    closed = document(annotations={"pilotlight.dev/auth-tokens-sha256": "ab" * 32})
    with pytest.raises(PlatformError, match=r"access rules \(pilotlight.dev/auth-tokens-sha256\)"):
        endpoint_of(rendered(tmp_path, closed), {}, "home")


@pytest.mark.parametrize(
    ("container", "status", "body", "state", "reason"),
    [
        (OURS, 200, {"state": "ready"}, "ready", ""),
        (OURS, 200, {"state": "loading"}, "loading", ""),
        (OURS, 200, {"state": "failed", "reason": "no such file"}, "failed", "no such file"),
        (OURS, 200, [], "loading", "/status returned something unexpected"),
        (OURS, 0, "", "loading", "it does not respond yet"),
        (OURS, 502, "", "loading", "/status returned 502"),
        (THEIRS, 200, "", "ready", ""),
        (THEIRS, 503, "", "loading", "/health returned 503"),
    ],
)
def test_health_is_what_the_server_says(
    container: ContainerSpec, status: int, body: Any, state: str, reason: str
) -> None:
    assert read_health(container, status, json.dumps(body).encode()) == (state, reason)


def test_health_is_asked_for_where_the_pod_says() -> None:
    silent = ContainerSpec("main", "example.com/server:1", (), (), {}, 8000)
    assert [health_path(container) for container in (OURS, THEIRS, silent)] == ["/status", "/health", ""]
