"""For every alert: series under which it fires, and series under which it must not. promtool plays them.

Times are minutes. `60x100` in a series is promtool's notation: that many more samples, each so much larger.
"""

from dataclasses import dataclass, field

WHOSE = 'namespace="lab",inference_service="iris"'
SIDE = f'{WHOSE},revision="iris-1"'
COUNT = "pilotlight_request_duration_seconds_count"
REPLICAS = f'pilotlight_replicas{{{SIDE},workload="iris"'
SIGNAL = f'{{{WHOSE},workload="iris",unit="iris-1",metric="concurrency"}}'
HPA = 'namespace="lab",horizontalpodautoscaler="keda-hpa-iris"'
LIMITED = f'kube_horizontalpodautoscaler_status_condition{{{HPA},condition="ScalingLimited",status="true"}}'


@dataclass(frozen=True)
class Case:
    alert: str
    title: str
    fires: bool
    series: dict[str, str]
    minutes: int = 30
    labels: dict[str, str] = field(default_factory=dict)  # beside severity


IRIS = {"namespace": "lab", "inference_service": "iris"}
IRIS_1 = {**IRIS, "revision": "iris-1"}


def requests(ok: str, failed: str) -> dict[str, str]:
    return {f'{COUNT}{{{SIDE},code="200"}}': ok, f'{COUNT}{{{SIDE},code="500"}}': failed}


BURN = (
    Case("PilotlightErrorBudgetBurnFast", "2 % fail", True, requests("0+98x90", "0+2x90"), 80, IRIS),
    Case("PilotlightErrorBudgetBurnFast", "1 % fail", False, requests("0+99x90", "0+1x90"), 80),
    Case("PilotlightErrorBudgetBurnFast", "nobody asks", False, requests("5x90", "5x90"), 80),
    Case("PilotlightErrorBudgetBurnFast", "it is over", False, requests("0+98x150", "0+2x60 120x90"), 80),
    Case(
        "PilotlightErrorBudgetBurnFast",
        "no replica came, which no replica counts",
        True,
        {
            **requests("0+98x90", "0x90"),
            f'pilotlight_gateway_requests_refused_total{{{WHOSE},reason="no_replica"}}': "0+2x90",
        },
        80,
        IRIS,
    ),
    Case(
        "PilotlightErrorBudgetBurnFast",
        "replicas end in the middle of a request, which they cannot count",
        True,
        {**requests("0+98x90", "0x90"), f"pilotlight_gateway_requests_lost_total{{{SIDE}}}": "0+2x90"},
        80,
        IRIS,
    ),
    Case(
        "PilotlightErrorBudgetBurnFast",
        "clients beyond their rate",
        False,
        {
            **requests("0+98x90", "0x90"),
            f'pilotlight_gateway_requests_refused_total{{{WHOSE},reason="rate"}}': "0+9x90",
        },
        80,
    ),
    Case("PilotlightErrorBudgetBurnSlow", "0.8 % fail", True, requests("0+992x400", "0+8x400"), 390, IRIS),
    Case("PilotlightErrorBudgetBurnSlow", "0.5 % fail", False, requests("0+995x400", "0+5x400"), 390),
    Case("PilotlightErrorBudgetBurnSlow", "it is over", False, requests("0+992x400", "0+8x340 2720x60"), 390),
)

STARTS = (
    Case(
        "PilotlightColdStartSlow", "70 s", True,
        {f'pilotlight_cold_start_seconds{{{SIDE},phase="total"}}': "70x30"}, labels=IRIS_1,
    ),
    Case(
        "PilotlightColdStartSlow", "50 s", False, {f'pilotlight_cold_start_seconds{{{SIDE},phase="total"}}': "50x30"},
    ),
    Case(
        "PilotlightColdStartSlow", "70 s, hours ago", False,
        {f'pilotlight_cold_start_seconds{{{SIDE},phase="total"}}': "70x120"}, 100,
    ),
    Case(
        "PilotlightColdStartSlow", "a replica that was started again", True,
        {f'pilotlight_cold_start_seconds{{{SIDE},phase="total"}}': "70x80 75x40"}, 100, IRIS_1,
    ),
    Case(
        "PilotlightColdStartSlow", "a phase is not the whole", False,
        {f'pilotlight_cold_start_seconds{{{SIDE},phase="load"}}': "70x30"},
    ),
    Case(
        "PilotlightModelLoadFailing", "who starts replicas says so", True, {f'{REPLICAS},state="failed"}}': "1x30"},
        labels=IRIS_1,
    ),
    Case(
        "PilotlightModelLoadFailing", "a replica runs without its model", True,
        {f'pilotlight_model_state{{{SIDE},model="iris",state="UNAVAILABLE"}}': "1x30"}, labels=IRIS_1,
    ),
    Case(
        "PilotlightModelLoadFailing", "another version is there", False,
        {
            f'pilotlight_model_state{{{SIDE},model="iris",version="2",state="UNAVAILABLE"}}': "1x30",
            f'pilotlight_model_state{{{SIDE},model="iris",version="1",state="READY"}}': "1x30",
        },
    ),
    Case("PilotlightModelLoadFailing", "only for a moment", False, {f'{REPLICAS},state="failed"}}': "1x3 0x30"}),
    Case("PilotlightModelLoadFailing", "none failed", False, {f'{REPLICAS},state="failed"}}': "0x30"}),
)  # fmt: skip


def waits(quick: int, slow: int) -> dict[str, str]:
    """So many requests a minute that waited up to half a second, and so many up to two seconds."""
    name = f"pilotlight_queue_seconds_bucket{{{SIDE},le="
    edges = {"0.5": quick, "1.0": quick, "2.0": quick + slow, "+Inf": quick + slow}
    return {f'{name}"{edge}"}}': f"0+{number}x30" for edge, number in edges.items()}


QUEUES = (
    Case("PilotlightQueueing", "one in five waits long", True, waits(80, 20), labels=IRIS),
    Case("PilotlightQueueing", "one in fifty does", False, waits(98, 2)),
)

WAITING = f"pilotlight_gateway_requests_waiting{{{SIDE}}}"
SCALING = (
    Case("PilotlightStuckAtZeroWithQueue", "nobody comes", True, {WAITING: "3x30"}, labels=IRIS),
    Case(
        "PilotlightStuckAtZeroWithQueue", "starting is not ready", True,
        {WAITING: "3x30", f'{REPLICAS},state="ready"}}': "0x30", f'{REPLICAS},state="starting"}}': "1x30"}, labels=IRIS,
    ),
    Case(
        "PilotlightStuckAtZeroWithQueue", "one is ready", False,
        {WAITING: "3x30", f'{REPLICAS},state="ready"}}': "1x30"},
    ),
    Case(
        "PilotlightStuckAtZeroWithQueue", "one answers, on a cluster", False,
        {WAITING: "3x30", f"pilotlight_requests_in_flight{{{SIDE}}}": "0x30"},
    ),
    Case("PilotlightStuckAtZeroWithQueue", "nobody waits", False, {WAITING: "0x30"}),
    Case(
        "PilotlightScalerNoData", "a target without a signal", True, {f"pilotlight_scale_target{SIGNAL}": "7x30"},
        labels={**IRIS, "workload": "iris", "unit": "iris-1", "metric": "concurrency"},
    ),
    Case(
        "PilotlightScalerNoData", "a signal of zero is one", False,
        {f"pilotlight_scale_target{SIGNAL}": "7x30", f"pilotlight_scale_signal{SIGNAL}": "0x30"},
    ),
    Case(
        "PilotlightScalerNoData", "KEDA's scaler fails", True,
        {'keda_scaler_detail_errors_total{namespace="lab",scaledObject="iris",scaler="prometheus"}': "0+1x30"},
        labels={"namespace": "lab", "scaledObject": "iris", "scaler": "prometheus"},
    ),
    Case(
        "PilotlightScalerNoData", "it failed once, long ago", False,
        {'keda_scaler_detail_errors_total{namespace="lab",scaledObject="iris",scaler="prometheus"}': "4x30"},
    ),
    Case(
        "PilotlightAtMaxReplicas", "and its signal is above the target", True,
        {
            f'{REPLICAS},state="desired"}}': "3x40", f'pilotlight_replica_limits{{{SIDE},bound="max"}}': "3x40",
            f"pilotlight_scale_signal{SIGNAL}": "9x40", f"pilotlight_scale_target{SIGNAL}": "7x40",
        },
        labels=IRIS_1,
    ),
    Case(
        "PilotlightAtMaxReplicas", "as busy as it should be", False,
        {
            f'{REPLICAS},state="desired"}}': "3x40", f'pilotlight_replica_limits{{{SIDE},bound="max"}}': "3x40",
            f"pilotlight_scale_signal{SIGNAL}": "6x40", f"pilotlight_scale_target{SIGNAL}": "7x40",
        },
    ),
    Case(
        "PilotlightAtMaxReplicas", "there is room", False,
        {
            f'{REPLICAS},state="desired"}}': "2x40", f'pilotlight_replica_limits{{{SIDE},bound="max"}}': "3x40",
            f"pilotlight_scale_signal{SIGNAL}": "9x40", f"pilotlight_scale_target{SIGNAL}": "7x40",
        },
    ),
    Case(
        "PilotlightAtMaxReplicas", "an HPA says so", True,
        {
            f"kube_horizontalpodautoscaler_status_desired_replicas{{{HPA}}}": "4x40",
            f"kube_horizontalpodautoscaler_spec_max_replicas{{{HPA}}}": "4x40", LIMITED: "1x40",
            f"pilotlight_requests_in_flight{{{SIDE}}}": "8x40",
        },
        labels={"namespace": "lab", "horizontalpodautoscaler": "keda-hpa-iris"},
    ),
    Case(
        "PilotlightAtMaxReplicas", "an HPA of somebody else", False,
        {
            f"kube_horizontalpodautoscaler_status_desired_replicas{{{HPA}}}": "4x40",
            f"kube_horizontalpodautoscaler_spec_max_replicas{{{HPA}}}": "4x40", LIMITED: "1x40",
        },
    ),
)  # fmt: skip

OWN = 'namespace="default",inference_service="iris"'  # of the plan whose own rules are played too
ONE_SERVICE = (
    Case(
        "PilotlightSlowStart", "near the deadline of 600 s", True,
        {f'pilotlight_cold_start_seconds{{{OWN},phase="total"}}': "500x30"},
    ),
    Case(
        "PilotlightSlowStart", "far from it", False,
        {f'pilotlight_cold_start_seconds{{{OWN},phase="total"}}': "400x30", f"up{{{OWN}}}": "1x30"},
    ),
    Case("PilotlightNotScraped", "nothing answers", True, {f"up{{{OWN}}}": "0x30"}),
    Case("PilotlightNotScraped", "one replica does", False, {f"up{{{OWN}}}": "1x30"}),
)  # fmt: skip

PHASE = f'pilotlight_canary_phase{{{SIDE},phase="RolledBack"}}'
CANARIES = (
    Case("PilotlightCanaryRolledBack", "just now", True, {PHASE: "0x20 1x40"}, 30, IRIS_1),
    Case("PilotlightCanaryRolledBack", "more than an hour ago", False, {PHASE: "1x200"}, 120),
    Case("PilotlightCanaryRolledBack", "hours ago, and untold meanwhile", False, {PHASE: "1x60 _x80 1x30"}, 150),
    Case("PilotlightCanaryRolledBack", "once more", True, {PHASE: "1x120 0x20 1x20"}, 150, IRIS_1),
    Case("PilotlightCanaryRolledBack", "before anybody looked", True, {PHASE: "_x20 1x20"}, 30, IRIS_1),
    Case("PilotlightCanaryRolledBack", "it goes on", False, {PHASE: "0x60"}, 30),
)

CASES = (*BURN, *STARTS, *QUEUES, *SCALING, *ONE_SERVICE, *CANARIES)
