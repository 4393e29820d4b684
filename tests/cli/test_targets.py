"""How verbs name services and targets, and what they say where there is nothing."""

import json
from datetime import timedelta
from pathlib import Path

import pytest
from tests.certificates import Authority
from tests.cli.conftest import Call
from tests.cuda import stand_in

from pilotlight.errors import NotFound, UsageError
from pilotlight.targets import table
from pilotlight.targets.local.gateway.https_settings import HttpsSettings
from pilotlight.targets.local.supervisor.parking import cuda_checkpoint
from pilotlight.targets.local.supervisor.parking.cuda_checkpoint import NotPermitted
from pilotlight.targets.target import Condition, ReplicaStatus, RevisionStatus, ServiceStatus
from pilotlight.wire.tls import valid_until
from platformctl import targets
from platformctl.commands.service import traffic
from platformctl.doctor import local_checks
from platformctl.services import status_views

LOOKING_AT_ONE = [("status", "iris"), ("logs", "iris"), ("events", "iris"), ("canary", "status", "iris"),
                  ("history", "iris"), ("wait", "iris")]  # fmt: skip
LOOKING_AT_ALL = [("status",), ("list",), ("events",), ("top",)]

THEIRS = """
class Theirs:
    name = "theirs"
    embedded = False

    def list(self, namespace):
        return []


def make(environ):
    return Theirs()
"""


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home in which nothing was ever deployed, on ports that nobody has."""
    monkeypatch.setenv("PILOTLIGHT_HOME", str(tmp_path / "home"))
    for name in ("PILOTLIGHT_GATEWAY_PORT", "PILOTLIGHT_API_PORT", "PILOTLIGHT_SERVICE_PORTS"):
        monkeypatch.setenv(name, "0")
    return tmp_path / "home"


@pytest.mark.parametrize(
    ("typed", "key"),
    [("iris", ("prod", "iris")), ("other/iris", ("other", "iris")), ("default/a-b", ("default", "a-b"))],
)
def test_a_service_is_named_with_or_without_its_namespace(typed: str, key: tuple[str, str]) -> None:
    assert targets.ServiceOptions("local", "prod").key(typed) == key


@pytest.mark.parametrize("typed", ["", "a/b/c", "a/"])
def test_what_is_no_name_is_refused(typed: str) -> None:
    with pytest.raises(UsageError, match="write NAME or NAMESPACE/NAME"):
        targets.ServiceOptions("local", "default").key(typed)


@pytest.mark.parametrize("words", [*LOOKING_AT_ONE, *LOOKING_AT_ALL], ids=" ".join)
def test_looking_starts_nothing(words: tuple[str, ...], call: Call, nowhere: Path) -> None:
    done = call(*words)
    assert done.code == (3 if words in LOOKING_AT_ONE else 0)
    assert len(done.out.splitlines()) <= 1  # at most the heading
    assert "the platform is not running" in done.err
    assert "platformctl up" in done.err
    assert not nowhere.exists()


def test_where_nothing_runs_a_list_is_empty_and_a_difference_is_all_of_it(call: Call, nowhere: Path) -> None:
    assert json.loads(call("list", "-o", "json").out) == {"services": []}
    done = call("diff", "-f", "examples/services/iris.yaml", "-o", "json")
    assert done.code == 1
    assert {each["change"] for each in json.loads(done.out)} == {"added"}
    assert not nowhere.exists()


@pytest.mark.parametrize("home", ["/proc/x", "/dev/null", "/dev/null/x"])
def test_a_home_that_cannot_be_written_to_is_told(home: str, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PILOTLIGHT_HOME", home)
    for words in (("up",), ("deploy", "-f", "examples/services/iris.yaml")):
        done = call(*words)
        assert done.code == 1
        assert f"the platform cannot keep its state in {home}: " in done.err
        assert "set PILOTLIGHT_HOME" in done.err
    assert call("down").code == 0
    found = {each["check"]: each for each in json.loads(call("doctor", "-o", "json").out)["checks"]}
    assert found["home"]["level"] == "fail"


def test_an_interpreter_that_cannot_be_executed_is_not_told_as_a_home_that_cannot_be_written_to(
    call: Call, nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    done = call("up")
    assert done.code == 1
    assert "the control process cannot be started: /nowhere/python: No such file or directory" in done.err
    assert "cannot keep its state" not in done.err


def test_down_where_nothing_runs_is_no_error(call: Call, nowhere: Path) -> None:
    done = call("down", "-o", "json")
    assert done.code == 0
    assert json.loads(done.out) == {"ended": [], "replicas": 0}
    assert not nowhere.exists()


def test_a_context_is_for_clusters_only(call: Call) -> None:
    done = call("list", "--context", "staging")
    assert done.code == 2
    assert "--context names a cluster, and the target is local" in done.err


def test_a_cluster_that_nobody_has_configured_is_told_with_what_to_set(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    done = call("list", "--target", "kubernetes")
    assert done.code == 3
    assert "KUBECONFIG" in done.err


def test_an_unknown_target_is_told_with_those_that_there_are(call: Call) -> None:
    done = call("list", "--target", "moon")
    assert done.code == 2
    assert "unknown target moon; known: local" in done.err


def test_a_package_adds_a_target(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "their_target.py").write_text(THEIRS)
    metadata = tmp_path / "theirs-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(f"[{table.ENTRY_POINTS}]\ntheirs = their_target:make\n")
    monkeypatch.syspath_prepend(tmp_path)
    done = call("list", "--target", "theirs")
    assert done.code == 0, done.err
    assert "no services" in done.err


@pytest.mark.parametrize(
    ("text", "why"),
    [("a=90,b=5", "add up to 95, must be 100"), ("a", "a is not understood"), ("a=x", "a=x is not understood")],
)
def test_shares_that_are_none_are_refused(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        traffic.parse_shares(text)


def test_shares_name_any_revision_by_its_end_and_none_of_them_twice() -> None:
    names = ("iris-predictor-0a", "iris-predictor-1b")
    found = traffic.parse_shares("0a=50,latest=50@new", names, "iris-predictor-1b")
    assert [(share.revision, share.percent) for share in found] == [("iris-predictor-0a", 50), ("latest", 50)]
    with pytest.raises(UsageError, match=r"iris-predictor-1b is named twice \(latest is that one\)"):
        traffic.parse_shares("1b=50@old,latest=50@new", names, "iris-predictor-1b")
    with pytest.raises(UsageError, match="iris-predictor-0a is named twice"):
        traffic.parse_shares("0a=50,0a=50", names)


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        ((), "one of --min, --max, --to and --reset is needed"),
        (("--reset", "--min", "1"), "--reset stands alone"),
        (("--to", "1", "--max", "2"), "--to is both bounds at once"),
        (("--to", "0"), "--min 0 scales it to zero"),
    ],
)
def test_bounds_that_cannot_be_meant_are_refused(flags: tuple[str, ...], why: str, call: Call, nowhere: Path) -> None:
    done = call("scale", "iris", *flags)
    assert done.code == 2
    assert why in done.err


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        ((), "infer needs the input of the model: one of --data, --file, --image, --text, --binary\n"),
        (("--data", "[1]", "--text", "a"), "give only one of --data, --text\n  platformctl infer iris --data '[5.1"),
    ],
)
def test_infer_needs_one_input(flags: tuple[str, ...], why: str, call: Call, nowhere: Path) -> None:
    done = call("infer", "iris", *flags)
    assert (done.code, why in done.err) == (2, True), done.err


def test_a_dry_run_alone_needs_no_platform(call: Call, nowhere: Path) -> None:
    done = call("deploy", "-f", "examples/services/iris.yaml", "--dry-run")
    assert done.code == 0, done.err
    assert done.out.startswith("default/iris iris-predictor-")
    assert not nowhere.exists()


@pytest.mark.parametrize("before", [True, False])
def test_a_dry_run_is_told_as_data(before: bool, call: Call, nowhere: Path) -> None:
    words = ("deploy", "-f", "examples/services/iris.yaml", "--dry-run")
    done = call("-o", "json", *words) if before else call(*words, "-o", "json")
    assert done.code == 0, done.err
    (service,) = json.loads(done.out)["services"]
    assert (service["namespace"], service["name"], service["mode"]) == ("default", "iris", "serverless")
    assert service["revisions"][0].startswith("iris-predictor-")


def test_a_status_as_data_has_the_fields_of_kserve_and_ome() -> None:
    revision = RevisionStatus("iris-predictor-1", "iris-predictor", "predictor", 100, ready=1, model_state="Loaded")
    since = "2026-01-15T10:30:00Z"
    ready = (Condition("Ready", "True", since=since),)
    status = ServiceStatus("default", "iris", 3, "Ready", "http://g/iris", revisions=(revision,), conditions=ready)
    told = status_views.as_document(status)
    assert told["address"] == {"url": "http://g/iris"}
    assert told["components"]["predictor"]["latestReadyRevision"] == "iris-predictor-1"
    assert told["modelStatus"]["transitionStatus"] == "UpToDate"
    assert told["conditions"] == [{"type": "Ready", "status": "True", "lastTransitionTime": since}]
    assert told["revisions"][0]["name"] == "iris-predictor-1", "what scripts have read so far stays"


def test_a_page_has_the_ports_of_the_service_alone() -> None:
    status = ServiceStatus("default", "iris", 1, "Ready", "http://g/iris", urls={"port": "http://127.0.0.1:8100"})
    assert "  port  http://127.0.0.1:8100" in status_views.page(status)
    urls = {**status.urls, "grpc": "127.0.0.1:8101"}
    status = ServiceStatus("default", "iris", 1, "Ready", "http://g/iris", urls=urls)
    assert "  grpc  127.0.0.1:8101" in status_views.page(status)


def test_pages_and_lists_say_ready_and_unverified() -> None:
    status = ServiceStatus("default", "iris", 1, "Ready", "http://g/iris", message="a request helps", verified=False)
    assert status_views.page(status)[:2] == ["default/iris: Ready, unverified", "  a request helps"]
    assert "Ready, unverified" in status_views.listing([status])[1]
    at_zero = ServiceStatus("default", "iris", 1, "Standby", "http://g/iris", verified=False)
    assert status_views.page(at_zero)[0] == "default/iris: Standby, unverified"


def test_a_wide_page_says_which_job_on_which_node_a_replica_is() -> None:
    rows = (ReplicaStatus("iris-1-a", "ready", "node7", "42"), ReplicaStatus("iris-1-b", "pending", reason="Priority"))
    revision = RevisionStatus("iris-1", "iris-predictor", "predictor", 100, replicas=rows)
    page = status_views.page(ServiceStatus("default", "iris", 1, "Ready", "", revisions=(revision,)), wide=True)
    assert page[-2:] == ["  replica iris-1-a  ready as 42 on node7", "  replica iris-1-b  pending Priority"]


def test_help_of_every_verb_that_reads_documents_has_an_example(call: Call) -> None:
    for verb in ("init", "validate", "render", "diff", "values", "explain", "lint"):
        assert f"Example: platformctl {verb} " in call(verb, "--help").out
    assert "..." not in call("canary", "--help").out.partition("Commands:")[2]


def test_nothing_to_deploy_is_a_usage_error(call: Call, nowhere: Path) -> None:
    done = call("deploy", "--target", "moon")
    assert done.code == 2


def test_doctor_finds_this_machine_able_and_names_who_holds_a_port(
    call: Call, nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os
    import socket

    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        port = held.getsockname()[1]
        monkeypatch.setenv("PILOTLIGHT_API_PORT", str(port))
        done = call("doctor", "-o", "json")
    found = {each["check"]: each for each in json.loads(done.out)["checks"]}
    assert done.code == 1
    assert found["python"]["level"] == "ok"
    assert found[f"port {port}"]["level"] == "fail"
    assert f"pid {os.getpid()}" in found[f"port {port}"]["message"]
    assert "PILOTLIGHT_API_PORT" in found[f"port {port}"]["fix"]
    assert not nowhere.exists()


@pytest.mark.parametrize(("days", "level"), [(15, "ok"), (13, "warn"), (-1, "fail")])
def test_doctor_says_until_when_the_certificate_is_valid(tmp_path: Path, days: int, level: str) -> None:
    certificate, key = Authority(tmp_path).issue()
    until = valid_until(certificate.read_text())
    served = HttpsSettings("0.0.0.0:8443", str(certificate), str(key))
    found = local_checks.https(served, until - timedelta(days=days))
    assert found.level == level
    assert found.message == f"https://0.0.0.0:8443, its certificate is valid until {until:%Y-%m-%d %H:%M} UTC"
    assert found.fix == ("" if level == "ok" else f"renew {certificate}")
    key.write_text("broken")
    broken = local_checks.https(served, until - timedelta(days=days))
    assert broken.level == "fail"
    assert "no certificate with its key" in broken.message


def test_every_failing_check_has_a_fix(nowhere: Path) -> None:
    from pilotlight.targets.local.home_directory import home

    found = [*local_checks.findings(home())]
    assert all(each.fix for each in found if each.level != "ok")
    (runtimes,) = (each for each in found if each.check == "runtimes")
    assert all(name in runtimes.message for name in ("scikit-learn 1", "xgboost", "lightgbm", "transformers"))


def test_the_doctor_says_whether_any_server_can_be_parked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in stand_in.variables(tmp_path / "gpu").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(cuda_checkpoint, "missing_privilege", lambda proc: None)
    (found,) = local_checks.parking()
    assert (found.level, found.message) == ("ok", "CUDA 13.0: any server can be parked")
    monkeypatch.setattr(cuda_checkpoint, "missing_privilege", lambda proc: NotPermitted("CAP_SYS_PTRACE is missing"))
    (found,) = local_checks.parking()
    assert (found.level, found.fix) == ("warn", cuda_checkpoint.PRIVILEGE)
    (tmp_path / "gpu/version").write_text("12040")
    (found,) = local_checks.parking()
    assert found.message.startswith("the NVIDIA driver supports CUDA 12.4, checkpoints need 12.8; only")


SAMPLE = "tests.platform.targets.sample_target"
DRY_RUN = ("deploy", "-f", "examples/services/iris.yaml", "--dry-run", "--target", "docker")


def test_options_of_a_target_reach_its_pods(call: Call, nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(table.MODULES, "docker", SAMPLE)
    words = ("-f", "examples/services/iris.yaml", "--target", "docker", "--target-option", "network=host")
    missing = call("render", *words)
    assert missing.code == 2
    assert "docker needs partition" in missing.err
    assert "--target-option partition=VALUE, or set SAMPLE_PARTITION" in missing.err
    monkeypatch.setenv("SAMPLE_PARTITION", "gpu")
    done = call("render", *words)
    assert done.code == 0, done.err
    assert "pilotlight.dev/target: docker" in done.out
    assert """pilotlight.dev/target-options: '{"network": "host", "partition": "gpu"}'""" in done.out
    assert call(*DRY_RUN).code == 0
    unknown = call(*DRY_RUN, "--target-option", "pool=x")
    assert (unknown.code, "--target-option pool is not an option of docker" in unknown.err) == (2, True)


def test_a_revision_differs_by_its_target_and_options(
    call: Call, nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(table.MODULES, "docker", SAMPLE)
    monkeypatch.setenv("SAMPLE_PARTITION", "gpu")
    local = call(*DRY_RUN[:4]).out
    docker = call(*DRY_RUN).out
    other = call(*DRY_RUN, "--target-option", "partition=cpu").out
    assert len({local, docker, other}) == 3


def test_doctor_runs_the_checks_of_the_target(call: Call, nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(table.MODULES, "docker", SAMPLE)
    done = call("doctor", "--target", "docker", "--target-option", "partition=gpu")
    assert (done.code, done.out.split("\n")[0]) == (0, "ok    daemon  answers in gpu")
    monkeypatch.setenv("SAMPLE_BROKEN", "1")
    done = call("doctor", "--target", "docker", "-o", "json")
    assert done.code == 1
    assert json.loads(done.out)["checks"][1]["fix"] == "ask for one"


def test_a_list_that_fails_hides_no_error_of_a_verb() -> None:
    class Lost:
        def list(self, namespace: str | None) -> None:
            raise ConnectionResetError

    error = NotFound("there is no service irs", "platformctl list")
    targets.suggest_service(error, {targets.CONNECTED: Lost(), targets.SERVICES: [("default", "irs")]})
    assert error.hint == "platformctl list"
