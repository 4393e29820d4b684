"""What the cluster's Prometheus has scraped of a service reaches `status`, and the dashboards' panels have data."""

from contextlib import suppress

from tests.cluster.own_objects import our_cluster
from tests.cluster.real_cluster import Cluster, seconds_until
from tests.cluster.requests import steady
from tests.cluster.scenarios import Story, document
from tests.platform.observability.queries import PANELS, expressions, needs_gpu

from pilotlight.errors import PlatformError
from pilotlight.targets.kubernetes.target import KubernetesTarget

# Of requests that do not pass our gateway; scaling is Knative's and KEDA's own here.
GATEWAYS = ("Rejected by the gateway",)
SHOWN = [
    (panel["title"], each)
    for name, panel in PANELS
    if name in ("overview", "model") and not needs_gpu(panel) and panel["title"] not in GATEWAYS
    for each in expressions(panel)
]


def test_latency_and_errors_are_shown_and_panels_have_data(cluster: Cluster, namespace: str) -> None:
    story = Story(cluster, namespace, "figures")
    host = story.deploy(document("figures", mode="Standard", scaler="keda", least=1)).removeprefix("http://")
    target = KubernetesTarget(our_cluster(cluster))
    waiting = set(SHOWN)

    def all_found() -> bool:
        mine = {each: each[1].replace('namespace=~".*"', f'namespace="{namespace}"') for each in waiting}
        with suppress(PlatformError):  # nobody could say, for once
            waiting.difference_update([each for each, query in mine.items() if target.query(query)])
        return not waiting

    def figures() -> bool:
        (row,) = story.status()["revisions"]
        return row["requests"] > 0 and row["error_percent"] == 0 and 0 < row["p50_ms"] <= row["p99_ms"]

    with steady(cluster.gateway, host, "figures", clients=2):
        seconds_until(all_found, "data in every panel", 180)
        seconds_until(figures, "figures in the status", 120)
    story.do("delete", "figures", "--no-wait")
