"""Starts against what they must keep within: timeouts, deadlines, probes, and GPUs that a draining replica holds."""

from dataclasses import replace
from typing import Any

from tests.platform.plan.building import FOREIGN, GPU, annotated, codes, in_mode, kserve, ome, planned, raw, reason

from pilotlight.k8s.names import ANNOTATION_SIZE, ANNOTATION_WAKE_BY
from pilotlight.plan.types import Capabilities
from pilotlight.spec.problems import Problem
from pilotlight.spec.service import Service

SLOW = Capabilities(load_rate_bytes_s=50_000_000)  # 30 GB in 600 s


def warning(service: Service, capabilities: Capabilities = SLOW) -> Problem:
    (found,) = [each for each in planned(service, capabilities).warnings if each.code in ("PL381", "PL382")]
    return found


def quiet(service: Service, capabilities: Capabilities = SLOW) -> bool:
    return not {"PL381", "PL382"} & set(codes(planned(service, capabilities).warnings))


def test_a_first_request_that_would_time_out_is_named_with_its_numbers_and_the_fix() -> None:
    found = warning(ome("big", min_replicas=0))
    assert found.path == "spec.engine.timeoutSeconds"
    assert found.message == (
        "the first request after an idle time may wait 300 s, but a start takes about 615 s (30.0 GB at 50 MB/s, plus "
        "startup); set it to 660 and Knative's max-revision-timeout-seconds, which is 600, or minReplicas to 1"
    )
    quicker = replace(SLOW, load_rate_bytes_s=75_000_000)
    assert "; set it to 420, or minReplicas to 1" in warning(ome("big", min_replicas=0), quicker).message
    assert quiet(ome("big", min_replicas=0, timeout_seconds=660))
    assert quiet(ome("big", min_replicas=1)), "no request waits"
    assert quiet(ome("big", min_replicas=0), Capabilities()), "165 s"
    assert quiet(ome("unsized", min_replicas=0))


def test_kserve_s_timeout_has_another_name() -> None:
    service = annotated(kserve(min_replicas=0), **{ANNOTATION_SIZE: "30G"})
    assert warning(service).path == "spec.predictor.timeout"


def test_our_gateway_holds_requests_for_raw_pods_as_long_as_they_may_start_but_not_on_one_machine() -> None:
    service = raw(ome("big", min_replicas=0, annotations={ANNOTATION_WAKE_BY: "gateway"}))
    assert quiet(service)
    assert warning(service, replace(SLOW, target="local")).path == "spec.engine.timeoutSeconds"


def test_a_model_on_the_node_is_read_from_its_disk() -> None:
    on_node = annotated(ome("onnode", FOREIGN, min_replicas=0), **{ANNOTATION_SIZE: "30G"})
    assert quiet(on_node)
    value, why = reason(planned(on_node, SLOW), "engine: cold start")
    assert value == "about 32 s"
    assert why.endswith(": 30.0 GB at 1800 MB/s from the node, plus startup")


def test_the_last_replica_is_kept_as_long_as_its_model_takes_to_load_again() -> None:
    on_node = annotated(ome("onnode", FOREIGN, min_replicas=0), **{ANNOTATION_SIZE: "90G"})
    assert reason(planned(on_node), "engine: kept after the last request")[0] == "50 s"
    fetched = annotated(ome("big", min_replicas=0), **{ANNOTATION_SIZE: "90G"})
    assert reason(planned(fetched), "engine: kept after the last request")[0] == "450 s"


def test_deadlines_and_probes_that_end_a_start_are_named() -> None:
    short = {"serving.knative.dev/progress-deadline": "300s"}
    found = warning(annotated(ome("big", min_replicas=1), **short))
    assert found.message.startswith("the progress deadline is 300 s, but a start takes about 615 s")
    probe = {"startupProbe": {"httpGet": {"path": "/"}, "periodSeconds": 10, "failureThreshold": 12}}
    service = ome("big", FOREIGN, min_replicas=1, runner=probe)
    assert warning(service).message.startswith("its startupProbe allows 120 s, but a start")
    woken = raw(ome("big", FOREIGN, min_replicas=0, runner=probe, annotations={ANNOTATION_WAKE_BY: "gateway"}))
    assert warning(woken).message.startswith("its startupProbe allows 120 s, KEDA's cooldown 300 s, but a start")
    assert quiet(in_mode(service, "Serverless")), "Knative has no startup probe of ours"


def test_a_replica_that_holds_all_gpus_while_it_drains_is_warned_about() -> None:
    def total(count: int | None, **engine: Any) -> bool:
        return quiet(ome(runner=GPU, **engine), Capabilities(gpus_total=count))

    found = warning(ome(runner=GPU, min_replicas=0), Capabilities(gpus_total=1))
    assert (found.code, found.path) == ("PL382", "spec.engine.minReplicas")
    assert found.message == (
        "for 30 s after a scale to zero Knative drains the old replica, which holds 1 of the cluster's 1 GPUs, and a "
        "new one waits; use RawDeployment, or set it to 1"
    )
    assert total(2, min_replicas=0)
    assert total(None, min_replicas=0)
    assert total(1, min_replicas=1)
