"""What the control process exports of scaling, and whom it tells Prometheus to scrape."""

from tests.platform.targets.local.runs import replica, revision, revision_of, running, service, workload

from pilotlight.gateway.control_link import BackendReport
from pilotlight.targets.local.control import metrics_export
from pilotlight.targets.local.control.service_state import ServiceRun
from pilotlight.targets.local.control.status import ServiceView, status_of
from pilotlight.targets.local.scaling.types import Fixed, Hpa, Kpa, Metric, Scaling, ScalingRules
from pilotlight.targets.local.supervisor.replica_record import State
from pilotlight.targets.target import ServiceStatus
from pilotlight.wire.prometheus_text import Family

NAME = "iris-predictor-1"
QUERY = Metric("latency", "prometheus", "Value", 0.2, query="q")


def run_of(scaling: Scaling) -> ServiceRun:
    mode = "serverless" if isinstance(scaling, Kpa) else "raw"
    return running(service(workload(revision(NAME, scaling=scaling), mode=mode)))  # type: ignore[arg-type]


def seen(run: ServiceRun) -> ServiceStatus:
    return status_of(ServiceView(run, [replica(NAME)], 0.0, "http://127.0.0.1:8090", {NAME: 100}))


def values(family: Family, *labels: str) -> dict[tuple[str, ...], float]:
    return {tuple(found[label] for label in labels): value for found, value, _ in family.samples}


def hpa(*metrics: Metric) -> Hpa:
    return Hpa(1, 4, metrics, ScalingRules(()), ScalingRules(()))


def test_bounds_are_those_that_hold_also_when_set_by_hand() -> None:
    run = run_of(Kpa(min_scale=1, max_scale=5))
    assert values(metrics_export.limits([run], [seen(run)], 0.0), "bound") == {("min",): 1, ("max",): 5}
    run.overrides = {"iris-predictor": {"maxReplicas": 2}}
    assert values(metrics_export.limits([run], [seen(run)], 0.0), "bound")[("max",)] == 2


def test_who_has_no_upper_bound_can_not_be_at_it() -> None:
    for scaling in (Kpa(), Fixed(2)):
        run = run_of(scaling)
        assert ("max",) not in values(metrics_export.limits([run], [seen(run)], 0.0), "bound")


def test_the_signal_of_a_knative_service_is_what_each_replica_has() -> None:
    run = run_of(Kpa(target=10.0, utilization=0.7, window_s=60.0))
    unit = run.unit_of(revision_of(run), 0.0)
    unit.desired = 2
    for second in (1.0, 2.0):
        unit.traffic.report(BackendReport("default", "iris", "iris-predictor", NAME, 6.0, 5, 0, 0, 6), second)
        unit.traffic.tick(second)
    signal, target = metrics_export.signals([run], 3.0)
    assert values(signal, "metric", "workload") == {("concurrency", "iris-predictor"): 3.0}
    assert values(target, "metric", "workload") == {("concurrency", "iris-predictor"): 7.0}


def test_a_query_that_nobody_could_answer_has_a_target_and_no_signal() -> None:
    run = run_of(hpa(QUERY))
    unit = run.unit_of(revision_of(run), 0.0)
    unit.metrics["latency"] = None
    signal, target = metrics_export.signals([run], 0.0)
    assert (values(signal, "metric"), values(target, "metric")) == ({}, {("latency",): 0.2})
    unit.metrics["latency"] = 0.5
    assert values(metrics_export.signals([run], 0.0)[0], "metric") == {("latency",): 0.5}


def test_nothing_is_compared_at_zero() -> None:
    run = run_of(hpa(QUERY))
    run.unit_of(revision_of(run), 0.0).desired = 0
    assert [family.samples for family in metrics_export.signals([run], 0.0)] == [[], []]


def test_decisions_are_counted_by_rule_and_begin_with_zero() -> None:
    run = run_of(Kpa())
    run.unit_of(revision_of(run), 0.0).decisions.update({"panic": 2, "": 1})
    counted = values(metrics_export.decisions([run]), "reason", "workload")
    assert counted["panic", "iris-predictor"] == 2
    assert counted["other", "iris-predictor"] == 1
    assert counted["zero", "iris-predictor"] == 0


def test_the_first_decision_of_an_hpa_is_exported_as_zero_before() -> None:
    run = run_of(hpa(QUERY))
    run.unit_of(revision_of(run), 0.0)
    counted = values(metrics_export.decisions([run]), "reason")
    assert {("metrics",): 0, ("policy",): 0, ("bound",): 0, ("window",): 0}.items() <= counted.items()


def test_every_replica_that_may_answer_is_a_target_with_its_service() -> None:
    states: tuple[State, ...] = ("waiting", "starting", "ready", "draining", "exited")
    replicas = [replica(NAME, state, port=9000 + number) for number, state in enumerate(states)]
    control, gateway, *others = metrics_export.targets(replicas, 8090, "127.0.0.1:8091")
    assert control == {"targets": ["127.0.0.1:8091"], "labels": {"job": "pilotlight-control"}}
    assert gateway == {"targets": ["127.0.0.1:8090"], "labels": {"job": "pilotlight-gateway"}}
    assert [each["targets"] for each in others] == [["127.0.0.1:8091"]] * 3
    assert others[1]["labels"] == {
        "job": "pilotlight-predictor", "pod": f"{NAME}-ready", "namespace": "default", "inference_service": "iris",
        "revision": NAME, "instance": f"{NAME}-ready", "__metrics_path__": f"/metrics/replicas/{NAME}-ready",
    }  # fmt: skip


def test_who_holds_and_who_waits_for_gpu_memory_is_exported() -> None:
    shared, whole = replica(own="a", gpus=(0,), gpu_memory=8), replica(own="b", gpus=(0, 1))
    parked, waits = replica(state="parked", own="c", gpus=(1,), gpu_memory=8), replica(state="waiting", own="d")
    found = metrics_export.gpus([shared, whole, parked, waits], {"d": 3.5}, {"0": 80, "1": 40})
    assert values(found[0], "gpu", "state") == {("0", "ready"): 88, ("1", "ready"): 40}
    assert values(found[1], "revision") == {(NAME,): 3.5}


def test_the_host_memory_of_parked_replicas_and_their_last_wake_are_exported() -> None:
    parked, awake = replica(state="parked", own="a", parked_bytes=5), replica(own="b", parked_bytes=3, wake_s=0.5)
    found = metrics_export.gpus([parked, awake], {}, {})
    assert values(found[2], "revision") == {(NAME,): 5}
    assert values(found[3], "revision") == {(NAME,): 0.5}
