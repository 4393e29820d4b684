"""A service from its first deploy to its end, on one machine: what a newcomer does in the first ten minutes."""

from pathlib import Path

import pytest
from tests.embedded import IRIS, Platform, load, serverless

from pilotlight.errors import Conflict, NotFound, PlatformError, UsageError
from pilotlight.targets.target import Release, Share

KEY = ("default", "iris")
SECOND = "    containerConcurrency: 32"  # another template, so another revision

STANDARD = "    serving.kserve.io/deploymentMode: Standard"


def test_a_service_is_deployed_asked_falls_to_zero_and_is_woken_by_the_next_request(platform: Platform) -> None:
    platform.deploy(serverless())
    assert platform.wait_phase("Ready").revisions[0].model_state == "Loaded"
    reply = platform.ask()
    assert reply.status == 200
    assert reply.json()["outputs"][0]["shape"] == [1, 3]
    assert "x-pilotlight-cold-start" not in reply.headers

    asleep = platform.wait_phase("Standby")
    assert asleep.revisions[0].model_state == "Standby"
    assert asleep.revisions[0].ready == asleep.revisions[0].desired == 0
    assert asleep.revisions[0].decision.startswith("0: no requests for 6 s")
    platform.wait(lambda: not platform.replicas(), "the process to end")

    woken = platform.ask()
    assert woken.status == 200
    assert int(woken.headers["x-pilotlight-cold-start"]) > 0
    platform.wait(lambda: platform.status().revisions[0].cold_starts == 1, "the cold start to be counted")
    assert platform.status().revisions[0].cold_start["total"] > 0
    assert any(event == "Scaled: 1: a request is waiting" for event in platform.events())


def test_a_second_revision_takes_over_without_a_failed_request(platform: Platform) -> None:
    platform.deploy(serverless())
    first = platform.wait_phase("Ready").revisions[0].name
    with load(platform) as traffic:
        platform.deploy(serverless(extra=SECOND))
        platform.wait(lambda: platform.status().revisions[0].percent == 100, "the second revision to get all requests")
        platform.wait(lambda: len(platform.replicas()) == 1, "the first revision's replica to end")
    assert not traffic.failed
    assert platform.status().revisions[0].name != first


def test_a_canary_gets_its_share_and_a_tag_reaches_it_alone(platform: Platform) -> None:
    # Revisions of no other test: what the gateway still reports of theirs would be counted here.
    platform.deploy(serverless(extra="    containerConcurrency: 51"))
    platform.wait_phase("Ready")
    canary = serverless(extra="    containerConcurrency: 52\n    canaryTrafficPercent: 20")
    platform.deploy(canary)
    platform.wait(lambda: {row.percent for row in platform.status().revisions} == {20, 80}, "the split")
    platform.wait_phase("Ready")
    for _ in range(100):
        assert platform.ask().status == 200
    platform.wait(lambda: sum(row.requests for row in platform.status().revisions) >= 100, "the requests to be counted")
    shares = {row.percent: row.requests for row in platform.status().revisions}
    assert 10 <= shares[20] <= 30
    assert platform.ask("/iris@prev/v2/models/iris/infer").status == 200
    name = next(row.name for row in platform.status().revisions if row.percent == 20)
    assert platform.ask("/iris/v2/models/iris/infer", headers={"X-Pilotlight-Tag": name}).status == 200


def test_shares_set_by_hand_hold_over_a_deploy_until_they_are_reset(platform: Platform) -> None:
    platform.deploy(serverless())
    first = platform.wait_phase("Ready").revisions[0].name
    platform.deploy(serverless(extra=SECOND))
    platform.wait(lambda: platform.status().revisions[0].percent == 100, "the second revision")
    second = platform.status().revisions[0].name
    status = platform.target.traffic(KEY, [Share(first, 70), Share(second, 30)])
    assert {row.name: row.percent for row in status.revisions} == {first: 70, second: 30}
    platform.deploy(serverless(extra=SECOND))
    assert {row.percent for row in platform.status().revisions} == {70, 30}
    platform.deploy(serverless(extra=SECOND), reset=True)
    assert platform.status().revisions[0].percent == 100
    assert platform.status().overrides == {}


def test_a_reset_takes_back_what_was_set_by_hand_though_the_document_is_the_same(platform: Platform) -> None:
    platform.deploy(serverless())
    first = platform.wait_phase("Ready").revisions[0].name
    platform.deploy(serverless(extra=SECOND))
    platform.wait(lambda: platform.status().revisions[0].percent == 100, "the second revision")
    second = platform.status().revisions[0].name
    platform.target.traffic(KEY, [Share(first, 100)])
    status = platform.deploy(serverless(extra=SECOND), reset=True)
    assert {row.name: row.percent for row in status.revisions}[second] == 100


def test_shares_must_be_of_known_revisions_and_add_up(platform: Platform) -> None:
    platform.deploy(serverless())
    name = platform.wait_phase("Ready").revisions[0].name
    with pytest.raises(NotFound, match="unknown revision nobody"):
        platform.target.traffic(KEY, [Share("nobody", 100)])
    with pytest.raises(UsageError, match="add up to 90"):
        platform.target.traffic(KEY, [Share(name, 90)])


def test_bounds_set_by_hand_take_effect_at_once_and_make_no_new_revision(platform: Platform) -> None:
    platform.deploy(serverless())
    name = platform.wait_phase("Ready").revisions[0].name
    platform.target.scale(KEY, {"minReplicas": 2, "maxReplicas": 2})
    platform.wait(lambda: platform.status().revisions[0].ready == 2, "two replicas")
    assert platform.status().revisions[0].name == name
    assert not platform.target.scale(KEY, None).overrides


def test_a_broken_model_leaves_the_old_revision_serving_and_says_why(platform: Platform, tmp_path: Path) -> None:
    platform.deploy(serverless())
    good = platform.wait_phase("Ready").revisions[0].name
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(IRIS.read_bytes()[:100])
    platform.deploy(serverless(uri=broken.as_uri()))
    status = platform.wait_phase("Degraded")
    assert "broken.onnx" in status.message or "onnx" in status.message.lower()
    assert good in status.message
    failed = next(row for row in status.revisions if row.name != good)
    assert failed.model_state == "FailedToLoad"
    assert failed.reason
    assert platform.ask().status == 200


def test_a_first_deploy_that_cannot_load_is_failed_and_its_requests_are_refused(
    platform: Platform, tmp_path: Path
) -> None:
    platform.deploy(serverless(uri=(tmp_path / "missing.onnx").as_uri()))
    status = platform.wait_phase("Failed")
    assert "missing.onnx" in status.message
    platform.wait(lambda: platform.ask().status == 503, "requests to be refused")
    platform.deploy(serverless())
    platform.wait_phase("Ready")
    assert platform.ask().status == 200


def test_two_services_of_one_name_in_two_namespaces_never_meet(platform: Platform) -> None:
    platform.deploy(serverless())
    platform.deploy(serverless().replace("  name: iris\n", "  name: iris\n  namespace: other\n", 1))
    platform.wait_phase("Ready")
    platform.wait(lambda: platform.status(namespace="other").phase in ("Ready", "Standby"), "the other one")
    assert platform.ask("/other/iris/v2/models/iris/infer").status == 200
    platform.target.delete(("other", "iris"))
    platform.wait(lambda: platform.ask("/other/iris/v2/models/iris/infer").status == 404, "it to be gone")
    assert platform.ask().status == 200


def test_of_two_deploys_from_one_state_the_second_is_told_to_run_again(platform: Platform) -> None:
    platform.deploy(serverless())
    release = platform.target.releases(KEY)[0]
    seen = platform.status().generation
    mine = Release(*KEY, release.document, release.manifests, expected=seen, note="mine")
    platform.deploy(serverless(extra=SECOND))
    with pytest.raises(Conflict, match=f"generation {seen + 1}, yours started from {seen}"):
        platform.target.apply(mine)


def test_a_deployment_is_replaced_without_a_failed_request(platform: Platform) -> None:
    raw = serverless(annotations="    serving.kserve.io/deploymentMode: Standard").replace(
        "minReplicas: 0", "minReplicas: 2"
    )
    platform.deploy(raw)
    platform.wait(lambda: platform.status().revisions[0].ready == 2, "two replicas")
    first = platform.status().revisions[0].name
    with load(platform) as traffic:
        platform.deploy(raw.replace("maxReplicas: 3", "maxReplicas: 3\n    containerConcurrency: 50"))
        platform.wait(
            # Two or three: the load may raise them.
            lambda: [row.name != first and row.ready >= 2 for row in platform.status().revisions] == [True],
            "the new ones",
        )
    assert not traffic.failed


def test_what_one_machine_cannot_do_is_refused_with_the_reason(platform: Platform) -> None:
    text = (Path(__file__).parents[3] / "examples" / "services" / "deepseek-multi-node.yaml").read_text()
    with pytest.raises(PlatformError, match="local runs only the Pilotlight predictor image; use --target kubernetes"):
        platform.deploy(text)
    assert platform.target.list(None) == ()


def test_a_deleted_service_is_gone_with_its_processes_and_its_name_is_free(platform: Platform) -> None:
    platform.deploy(serverless())
    platform.wait_phase("Ready")
    platform.target.delete(KEY)
    assert platform.ask().status == 404
    platform.wait(lambda: not platform.replicas() and not platform.target.list(None), "it to be gone")
    with pytest.raises(NotFound, match="there is no service default/iris"):
        platform.status()
    platform.deploy(serverless())
    platform.wait_phase("Ready")
    assert platform.ask().status == 200


def test_a_document_of_triton_s_format_serves_every_model_of_its_repository(platform: Platform, tmp_path: Path) -> None:
    for model in ("one", "two"):
        (tmp_path / model / "1").mkdir(parents=True)
        (tmp_path / model / "1" / "model.onnx").write_bytes(IRIS.read_bytes())
    platform.deploy(serverless(uri=tmp_path.as_uri()).replace("{name: onnx}", "{name: triton}"))
    platform.wait_phase("Ready")
    for model in ("one", "two"):
        assert platform.ask(f"/iris/v2/models/{model}/infer").status == 200


def test_an_earlier_revision_gets_no_request_before_it_has_answered_again(platform: Platform, tmp_path: Path) -> None:
    old, new = tmp_path / "old.onnx", tmp_path / "new.onnx"
    for file in (old, new):
        file.write_bytes(IRIS.read_bytes())
    first = serverless(uri=old.as_uri()).replace("minReplicas: 0", "minReplicas: 1")
    platform.deploy(first)
    platform.wait_phase("Ready")
    platform.deploy(serverless(uri=new.as_uri()).replace("minReplicas: 0", "minReplicas: 1"))
    platform.wait(lambda: platform.status().revisions[0].percent == 100, "the second revision")
    serving = platform.status().revisions[0].name
    platform.wait(lambda: len(platform.replicas()) == 1, "the first one to end")
    content = old.read_bytes()
    old.unlink()
    with load(platform) as traffic:
        platform.deploy(first)
        status = platform.wait_phase("Degraded")
        assert serving in status.message
        old.write_bytes(content)
        platform.deploy(first)
        platform.wait(lambda: platform.status().phase == "Ready" and len(platform.replicas()) == 1, "it to be back")
    assert not traffic.failed
    assert platform.status().revisions[0].ready == 1


def test_a_service_that_cannot_wake_is_failed_and_not_progressing(platform: Platform, tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    model.write_bytes(IRIS.read_bytes())
    platform.deploy(serverless(uri=model.as_uri()))
    platform.wait_phase("Ready")
    platform.wait_phase("Standby")
    (snapshot,) = platform.home.models.glob("*/content/model.onnx")
    snapshot.unlink()
    assert platform.ask(timeout=120).status == 503
    status = platform.wait_phase("Failed")
    assert "model.onnx" in status.message
    assert status.revisions[0].model_state == "FailedToLoad"
