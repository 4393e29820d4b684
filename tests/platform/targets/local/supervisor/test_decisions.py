"""What is decided without touching anything: back-off, thresholds, GPUs, reasons, ports."""

from pathlib import Path

import pytest
from tests.platform.targets.local.supervisor.supervisor_harness import launch

from pilotlight.k8s.model_pins import ModelPin
from pilotlight.targets.local.home_directory import Home
from pilotlight.targets.local.manifests.service_spec_types import ContainerSpec, Mount, Probe
from pilotlight.targets.local.supervisor.container_command import (
    Command,
    address,
    checks,
    command,
    host,
    missing_file_fix,
    variables,
    with_paths,
)
from pilotlight.targets.local.supervisor.logs import last_error, over_limit
from pilotlight.targets.local.supervisor.probes import ProbeCounter, start_budget, start_interval
from pilotlight.targets.local.supervisor.replica_record import crash_backoff, failure_count
from pilotlight.targets.local.supervisor.shim import Exit, from_shell
from pilotlight.wire.http_client import LoopbackResponse

HOME = Home(Path("/state"))


def test_the_crash_backoff_doubles_up_to_half_a_minute() -> None:
    assert [crash_backoff(count) for count in range(9)] == [0, 0, 1, 2, 4, 8, 16, 30, 30]
    assert crash_backoff(10_000) == 30


def test_failures_count_until_a_replica_has_been_ready_for_a_while() -> None:
    assert failure_count(4, None, terminated=False) == 5
    assert failure_count(4, None, terminated=True) == 5  # ended with status 0 before it was ready
    assert failure_count(4, 0.5, terminated=False) == 5
    assert failure_count(4, 5.0, terminated=False) == 3
    assert failure_count(4, 5.0, terminated=True) == 2
    assert failure_count(4, 10.0, terminated=False) == 0


def test_the_tenth_crash_of_a_healthy_revision_is_replaced_at_once() -> None:
    failures = 0
    for _ in range(10):
        failures = failure_count(failures, 2.5, terminated=False)
    assert crash_backoff(failures) == 0


def test_a_start_is_asked_after_often_at_first_and_never_rarely() -> None:
    assert [start_interval(elapsed) for elapsed in (0.0, 0.1, 1.0, 100.0)] == [0.01, 0.01, 0.05, 0.1]


def test_the_startup_probe_is_a_budget() -> None:
    probe = Probe("/", 1, period_s=2.0, failure_threshold=30, initial_delay_s=5.0)
    assert start_budget(probe, 600.0) == 65.0
    assert start_budget(None, 600.0) == 600.0


def test_only_a_threshold_of_answers_in_a_row_changes_a_verdict() -> None:
    count = ProbeCounter(Probe("/", 1, period_s=5.0, failure_threshold=3, success_threshold=2), due=0.0)
    answers = [False, False, True, False, False, False, True, False, True, True]
    assert [count.record(ok, 10.0) for ok in answers] == [False] * 5 + [True] + [False] * 3 + [True]
    assert count.due == 15.0


@pytest.mark.parametrize(
    ("status", "ok"), [(200, True), (204, True), (302, True), (400, False), (503, False), (0, False)]
)
def test_an_answer_is_judged_as_kubernetes_does(status: int, ok: bool) -> None:
    assert LoopbackResponse(status).ok is ok


def test_a_shell_tells_signals_and_codes() -> None:
    assert from_shell(3) == Exit(3, None)
    assert from_shell(139) == Exit(139, 11)
    assert from_shell(255) == Exit(255, None)


def test_the_stacks_of_a_model_that_holds_the_gil_become_one_sentence() -> None:
    stacks = [
        "Timeout (0:00:16)!",
        "Thread 0x00007fb8e0dd2b80 (most recent call first):",
        '  File "/usr/lib/python3.11/re/__init__.py", line 166 in match',
        '  File "/models/slow/model.py", line 17 in predict',
        '  File "<frozen runpy>", line 198 in _run_module_as_main',
    ]
    error = last_error(['{"level":"INFO","message":"ready"}', *stacks])
    assert error == (
        "an execution has not finished in time and holds the GIL; the process exits: "
        'File "/models/slow/model.py", line 17 in predict'
    )


def test_the_last_error_of_a_log_is_found() -> None:
    error = '{"level":"ERROR","message":"model \'x\': no such file"}'
    assert last_error(["{}", error, '{"level":"INFO","message":"stopped"}', "plain"]) == "model 'x': no such file"
    assert last_error(["Traceback (most recent call last):", "ValueError: y", ""]) == "ValueError: y"
    assert last_error([]) == ""
    slurm = "slurmstepd-vm: error: *** JOB 1 ON vm CANCELLED AT 2026-11-17T11:30:12 ***"
    assert last_error(["ValueError: y", slurm]) == "ValueError: y"
    assert last_error(["WARNING: IPv4 forwarding is disabled. Networking will not work."]) == ""


@pytest.mark.parametrize(
    "hint",
    [
        "Run 'docker run --help' for more information",
        "See 'docker run --help'.",
        'Try "srun --help" for more information',
        "Try 'ls --help' for more information.",
        "usage: server [-h] [--port PORT]",
        "Usage:  docker run [OPTIONS] IMAGE [COMMAND] [ARG...]",
    ],
)
def test_a_hint_at_the_help_of_a_program_is_no_error(hint: str) -> None:
    assert last_error(["srun: unrecognized option '--x'", "", hint, ""]) == "srun: unrecognized option '--x'"


def test_an_error_that_names_help_is_one() -> None:
    assert last_error(["before", "try: no such option --help-me"]) == "try: no such option --help-me"


def test_memory_is_told_in_units_that_people_use() -> None:
    assert over_limit(612 << 20, 512 << 20) == "used 612 MiB, limit 512 MiB; raise resources.limits.memory"


def test_probes_go_to_the_ports_that_the_process_listens_on() -> None:
    made = checks(
        launch(
            readiness=Probe("/r", 8080), liveness=Probe("/m", 8082), startup=Probe("", 8081), env={}, memory_limit=7
        ),
        HOME,
    )
    assert (made.readiness.path, made.readiness.port) == ("/r", 8080)
    assert made.liveness is not None
    assert (made.liveness.path, made.liveness.port) == ("/m", 8082)
    assert made.startup is not None
    assert (made.startup.path, made.startup.port) == ("/v2/health/ready", 8080)
    assert made.memory_limit == 7


def test_a_foreign_server_without_probes_is_ready_when_it_listens() -> None:
    made = checks(launch(image="vllm/vllm-openai:v1", readiness=None, liveness=Probe("/live", 7)), HOME)
    assert (made.readiness, made.liveness) == (Probe("", 8080, kind="tcp"), Probe("/live", 7))
    assert not made.predictor


def test_a_model_that_is_mounted_into_another_image_is_its_snapshot() -> None:
    order = launch(image="example/server", mounts=(Mount("/data/m", "/mnt/models", read_only=True),))
    (mount,) = with_paths(order, {"/data/m": "/state/models/1"}).revision.container.mounts
    assert mount == Mount("/state/models/1", "/mnt/models", read_only=True)


def test_a_microservice_is_not_ended_for_a_model_that_cannot_be_loaded() -> None:
    made = checks(launch(readiness=None, env={"INFERENCE_MICROSERVICE": "true"}), HOME)
    assert (made.readiness, made.predictor) == (Probe("", 8080, kind="tcp"), False)
    assert checks(launch(readiness=None), HOME).predictor


def test_a_microservice_listens_on_its_port_of_the_machine() -> None:
    order = launch(env={"INFERENCE_MICROSERVICE": "true"}, host_port=9100)
    env = variables(order, (), HOME, "", {})
    assert (env["INFERENCE_HTTP_PORT"], env["INFERENCE_HOST"]) == ("9100", "127.0.0.1")
    assert (env["INFERENCE_GRPC_PORT"], env["INFERENCE_METRICS_PORT"]) == ("-1", "-1")
    assert address(order.revision.container, HOME, "a")[:2] == ("127.0.0.1", {8080: 9100, 8081: 0, 8082: 9100})
    closed = launch(env={"INFERENCE_MICROSERVICE": "true"})
    secret = {"AWS_REGION": "eu", "AWS_SECRET_ACCESS_KEY": "x", "HF_TOKEN": "x"}
    assert variables(closed, (), HOME, "", secret).keys() & secret.keys() == {"AWS_REGION"}
    assert variables(launch(), (), HOME, "", secret).items() >= secret.items()
    assert variables(closed, (), HOME, "", {})["INFERENCE_HOST"] == host(HOME, closed.replica)
    assert address(closed.revision.container, HOME, "a")[:2] == (host(HOME, "a"), {})


def test_a_port_that_the_manifest_renames_is_still_the_same_one() -> None:
    made = checks(launch(env={"INFERENCE_METRICS_PORT": "9000"}, liveness=Probe("/m", 9000)), HOME)
    assert made.liveness is not None
    assert made.liveness.port == 8082


def test_the_router_is_one_of_our_programs() -> None:
    order = launch(command=("python", "-m", "pilotlight.gateway", "route"), env={}, readiness=Probe("/ready", 8080))
    argv = ("/usr/bin/python3", "-P", "-m", "pilotlight.gateway", "route")
    assert command(order.revision.container, "/usr/bin/python3") == Command(argv, None)
    assert not checks(order, HOME).predictor


def test_flags_of_a_pod_do_not_win_over_the_ports_of_the_process() -> None:
    args = ("--http_port=8080", "--threads", "2", "--metrics-port", "8082", "--host", "0.0.0.0", "--port")
    made = command(launch(args=args).revision.container, "python3")
    assert made == Command(("python3", "-P", "-m", "pilotlight_predictor", "--threads", "2"), ("--threads", "2"))


def test_gpus_are_named_in_the_order_of_the_bus(tmp_path: Path) -> None:
    env = variables(launch(gpus=2), (1, 3), Home(tmp_path), "http://127.0.0.1:8090", {"PATH": "/bin", "X": "y"})
    assert (env["CUDA_VISIBLE_DEVICES"], env["CUDA_DEVICE_ORDER"]) == ("1,3", "PCI_BUS_ID")
    assert env["PATH"] == "/bin"
    assert "X" not in env


def test_only_the_stacks_of_the_watchdog_are_told_as_a_held_gil() -> None:
    others = ['  File "/old/model.py", line 3', "ValueError: x", "Timeout (30 s) while connecting to db", "Retrying"]
    assert last_error(others) == "Retrying"
    stacks = ["Timeout (0:00:10)!", "Thread 0x1 (most recent call first):", '  File "/new/model.py", line 7 in predict']
    assert "/new/model.py" in last_error([*others, *stacks])


def test_the_fix_for_a_missing_file_names_only_files_in_the_folder_of_the_model(tmp_path: Path) -> None:
    """The replica writes the reason, and could ask with it which files of its user exist."""
    (source := tmp_path / "scorer" / "scorer.py").parent.mkdir()
    source.write_text("class Scorer:\n    def predict(self, x):\n        return x\n")
    (source.parent / "weights.json").touch()
    (secret := tmp_path / "secret").touch()
    pins = {str(source): ModelPin("sha256:abc")}
    container = ContainerSpec("main", "pilotlight/predictor:1", (), (), {}, 8080, pins=pins)

    def fix(path: str) -> str:
        return missing_file_fix(container, f"No such file or directory: '/models/abc/content/{path}'")

    assert "weights.json was not deployed with scorer.py" in fix("weights.json")
    assert [fix(path) for path in (str(secret), f"/{secret}", "../secret", "x/../../secret", "/")] == [""] * 5
