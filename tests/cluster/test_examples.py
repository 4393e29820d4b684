"""Every example in every mode that fits it, judged by a real API server with all definitions installed."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cluster.real_cluster import Cluster

ROOT = Path(__file__).parents[2]
EXAMPLES = [*sorted((ROOT / "examples/services").glob("*.yaml")), ROOT / "examples/iris/service.yaml"]
CAPABILITIES = ("", "--default-mode=raw", "--pod-security=privileged")


def objects(cluster: Cluster, namespace: str, example: Path, flag: str) -> Iterator[dict[str, Any]]:
    # Without a target: for a cluster that has everything, our gateway too, whether this one has it or not.
    words = ["render", "-f", str(example), *([flag] if flag else [])]
    done = cluster.platformctl(namespace, *words, target="")
    assert done.returncode == 0, done.stderr
    for each in yaml.safe_load_all(done.stdout):
        where = each["metadata"].get("namespace", "")
        yield {**each, "metadata": {**each["metadata"], "namespace": namespace if where == "default" else where}}


@pytest.mark.parametrize("flag", CAPABILITIES)
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_every_object_is_accepted_by_the_api_server(cluster: Cluster, namespace: str, example: Path, flag: str) -> None:
    """Pods of the examples may ask for GPUs: no node has to take them for the object to be right."""
    refused = []
    for each in objects(cluster, namespace, example, flag):
        words = ("apply", "--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict", "-f", "-")
        try:
            cluster.kubectl(*words, text=yaml.safe_dump(each))
        except AssertionError as error:
            refused.append(f"{each['kind']} {each['metadata']['name']}: {error}")
    assert not refused, "\n".join(refused)
