"""A serverless service from its first deploy to its end, on a real Knative."""

import re
import shlex
from pathlib import Path

from tests.cluster.real_cluster import Cluster, seconds_until
from tests.cluster.requests import many, once
from tests.cluster.scenarios import Story, document

QUICK = ('autoscaling.knative.dev/window: "6s"',)
REQUESTS = 500
START = {"boot", "listen", "import", "load", "warmup", "total"}
ROOT = Path(__file__).parents[2]


def first(memory: str = "512Mi") -> str:
    return document("iris", annotations=QUICK, memory=memory)


def test_from_deploy_to_zero_and_back_through_a_canary_and_a_rollback(cluster: Cluster, namespace: str) -> None:
    story = Story(cluster, namespace, "iris")
    url = story.deploy(first())
    host = url.removeprefix("http://")
    assert story.status()["phase"] in ("Ready", "Standby"), "a slow machine sees it at zero again"

    assert once(cluster.ingress, host, "iris") == []

    seconds_until(lambda: story.status()["phase"] == "Standby", "at zero")
    assert story.status()["revisions"][0]["model_state"] == "Standby"
    seconds_until(lambda: not story.pods(), "no pod")

    assert once(cluster.ingress, host, "iris") == [], "a request wakes it"
    seconds_until(
        lambda: once(cluster.ingress, host, "iris") == [] and story.phases() >= START, "its phases are recorded"
    )

    (stable,) = story.shares()
    story.do("canary", "start", "iris", "-f", "-", "--percent", "20", text=first("640Mi"))
    shares = story.shares()
    (fresh,) = set(shares) - {stable}
    assert shares == {stable: 80, fresh: 20}
    assert many(cluster.ingress, host, "iris", 40) == [], "both have been asked, and none is about to end"
    before = story.answered()
    assert many(cluster.ingress, host, "iris", REQUESTS) == []
    since = story.answered() - before
    assert since.total() == REQUESTS
    got = sum(count for (revision, _), count in since.items() if revision == fresh)
    assert 60 <= got <= 140, f"{got} of {REQUESTS} for a share of 20 %"

    story.do("canary", "promote", "iris")
    assert story.shares() == {fresh: 100}
    story.do("rollback", "iris")
    assert story.shares() == {stable: 100}

    story.do("delete", "iris")
    story.wait_gone()
    assert story.run("status", "iris").returncode == 3


def test_what_the_readme_says_about_clusters_works_as_it_stands_there(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    section = (ROOT / "README.md").read_text().partition("\n## The same on Kubernetes\n")[2].partition("\n## ")[0]
    typed = re.findall(r"^\$ platformctl (.*?)(?: +#.*)?$", section, re.MULTILINE)
    assert [words.split()[0] for words in typed] == ["doctor", "init", "deploy", "canary"]
    typed += ["infer iris --data '[5.1, 3.5, 1.4, 0.2]'", "canary promote iris", "delete iris"]
    (tmp_path / "new.yaml").write_text(first("640Mi"))
    service = tmp_path / "service.yaml"
    for command in typed:
        done = cluster.platformctl(namespace, *shlex.split(command), cwd=tmp_path)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        if command.startswith("init "):
            assert f"storageUri: {command.split()[1]}\n" in service.read_text()
            service.write_text(first())  # the bed has no S3


def test_a_deploy_of_the_same_document_changes_nothing_and_diff_says_so(cluster: Cluster, namespace: str) -> None:
    story = Story(cluster, namespace, "same")
    text = document("same", annotations=QUICK)
    story.deploy(text)
    generation = story.status()["generation"]
    assert story.run("diff", "-f", "-", text=text).returncode == 0
    story.deploy(text)
    assert story.status()["generation"] == generation
    changed = story.run("diff", "-f", "-", text=document("same", annotations=QUICK, memory="640Mi"))
    assert changed.returncode == 1
    assert "memory: 512Mi → 640Mi" in changed.stdout
    story.do("delete", "same", "--no-wait")


def test_bounds_set_by_hand_make_a_revision_aloud_stay_over_a_deploy_and_go_again(
    cluster: Cluster, namespace: str
) -> None:
    story = Story(cluster, namespace, "bounds")
    text = document("bounds", annotations=QUICK)
    story.deploy(text)
    (planned,) = story.shares()
    scaled = story.run("scale", "bounds", "--min", "1", "--max", "2")
    assert scaled.returncode == 0, scaled.stderr
    assert "gets a new revision with new pods" in scaled.stderr
    seconds_until(lambda: story.status()["phase"] == "Ready", "ready with other bounds")
    (derived,) = story.shares()
    assert derived.startswith(f"{planned}-")
    again = story.run("deploy", "-f", "-", text=text)
    assert "override kept: bounds-predictor" in again.stderr
    assert story.shares() == {derived: 100}
    story.do("scale", "bounds", "--reset")
    seconds_until(lambda: story.shares() == {planned: 100}, "as the document says")
    story.do("delete", "bounds", "--no-wait")


def test_shares_set_by_hand_hold_until_they_are_reset(cluster: Cluster, namespace: str) -> None:
    story = Story(cluster, namespace, "shares")
    story.deploy(document("shares", annotations=QUICK))
    (old,) = story.shares()
    story.deploy(document("shares", annotations=QUICK, memory="640Mi"))
    (new,) = story.shares()
    story.do("traffic", "shares", f"{old}=50,latest=50")
    seconds_until(lambda: story.shares() == {old: 50, new: 50}, "half and half")
    story.do("traffic", "shares", "--reset")
    seconds_until(lambda: story.shares() == {new: 100}, "as the document says")
    story.do("delete", "shares", "--no-wait")
