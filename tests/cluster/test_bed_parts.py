"""The bed's own decisions, which need no cluster: keys, archives, definitions, daemons, sentences."""

import json
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from tests.cluster.bed import addons, boot, processes, programs
from tests.cluster.bed.__main__ import main
from tests.cluster.bed.archive import Image, Layer, pack
from tests.cluster.bed.own_kinds import own_definitions, structural
from tests.cluster.bed.places import ROOT, BedError, Places, places
from tests.cluster.bed.release_files import filled, local_images
from tests.cluster.real_cluster import find_cluster


@pytest.fixture
def somewhere(tmp_path: Path) -> Places:
    where = Places(tmp_path / "state", tmp_path / "cache")
    for folder in (where.run, where.log):
        folder.mkdir(parents=True)
    return where


def test_a_changed_pin_changes_the_key_of_its_programs_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {each.name: each.key for each in programs.PROGRAMS}
    shutil.copytree(programs.SOURCES, tmp_path / "src")
    monkeypatch.setattr(programs, "SOURCES", tmp_path / "src")
    pins = tmp_path / "src" / "knative" / "go.mod"
    pins.write_text(pins.read_text().replace("v0.42.2", "v0.43.0"))
    changed = {each.name for each in programs.PROGRAMS if each.key != before[each.name]}
    assert changed == {f"knative-{name}" for name in programs.KNATIVE}


def test_every_folder_of_sources_is_built_and_pinned_by_hash() -> None:
    assert {path.name for path in programs.SOURCES.iterdir()} == {each.source for each in programs.PROGRAMS}
    for folder in programs.SOURCES.iterdir():
        assert "require" not in (folder / "go.mod").read_text() or (folder / "go.sum").exists(), folder.name


def test_the_cache_lies_where_the_environment_says() -> None:
    assert places({"HOME": "/h"}).cache == Path("/h/.cache/pilotlight/cluster")
    assert places({"HOME": "/h", "XDG_CACHE_HOME": "/c"}).cache == Path("/c/pilotlight/cluster")
    assert places({"HOME": "/h", "PILOTLIGHT_CLUSTER_CACHE": "/mine"}).cache == Path("/mine")


def test_two_archives_of_one_tree_are_the_same_bytes(tmp_path: Path) -> None:
    archives = []
    for number in (1, 2):
        folder = tmp_path / str(number)
        (folder / "b").mkdir(parents=True)
        for name in ("b/two", "one") if number == 1 else ("one", "b/two"):
            (folder / name).write_text(name)
        archives.append(tmp_path / f"{number}.tar")
        pack(Image("dev.local/x:1", "k", (Layer(folder, "/app"),), ("/app/one",)), archives[-1])
    assert archives[0].read_bytes() == archives[1].read_bytes()


def test_an_archive_holds_a_program_under_its_names(tmp_path: Path) -> None:
    binary, archive = tmp_path / "binary", tmp_path / "image.tar"
    binary.write_text("x")
    pack(Image("dev.local/x:1", "k", (Layer(binary, "/bin/x", (("/bin/y", "x"),)),), ("/bin/x",)), archive)
    with tarfile.open(archive) as outer:
        manifest = json.load(outer.extractfile("manifest.json") or pytest.fail("no manifest"))
        layer = outer.extractfile(manifest[0]["Layers"][0])
        with tarfile.open(fileobj=layer) as inner:
            assert inner.getmember("bin/x").mode & 0o111
            assert inner.getmember("bin/y").linkname == "x"
    assert manifest[0]["RepoTags"] == ["dev.local/x:1"]


RUN = """
import sys
from pathlib import Path
from tests.cluster.bed.places import Places
from tests.cluster.bed.python_layers import made
for key in sys.argv[2:]:
    made(Places(Path(), Path(sys.argv[1])), "project", key, lambda folder: None)
print("made", flush=True)
sys.stdin.read()
"""


@contextmanager
def run_that_uses_layers(cache: Path, *keys: str) -> Iterator[None]:
    with subprocess.Popen(
        [sys.executable, "-c", RUN, str(cache), *keys], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == b"made\n"
        yield


def cached_layers(cache: Path) -> set[str]:
    return {path.name.split("-")[0] for path in (cache / "layers").glob("project@*")}


def test_a_layer_stays_in_the_cache_while_any_run_uses_it(tmp_path: Path) -> None:
    with run_that_uses_layers(tmp_path, "1", "2"), run_that_uses_layers(tmp_path, "3", "4"):
        assert cached_layers(tmp_path) == {"project@1", "project@2", "project@3", "project@4"}
    with run_that_uses_layers(tmp_path, "2", "5"):
        assert cached_layers(tmp_path) == {"project@2", "project@5"}


def test_upstream_image_names_become_local_ones() -> None:
    text = "image: gcr.io/knative/serving/cmd/activator@sha256:0a\nimage: ghcr.io/kedacore/keda-operator:main\n"
    activator, keda = local_images(text).splitlines()
    assert activator == f"image: dev.local/knative-activator:{programs.program('knative-activator').key}"
    assert keda == f"image: dev.local/keda:{programs.program('keda').key}"
    assert filled("clusterIP: @DNS_IP@") == "clusterIP: 10.96.0.10"


def test_our_own_definitions_are_structural() -> None:
    assert {each["spec"]["names"]["kind"] for each in own_definitions()} >= {"RayCluster", "InterceptorRoute"}
    assert "$ref" not in json.dumps(own_definitions())
    assert structural({"enum": ["a"]}) == {"enum": ["a"], "type": "string"}
    assert structural({"$ref": "#/x"})["x-kubernetes-preserve-unknown-fields"]


def test_a_daemon_runs_once_and_is_ended(somewhere: Places) -> None:
    command: list[str | Path] = ["sleep", "600"]
    processes.start(somewhere, "nap", command)
    pid = processes.pid_of(somewhere, "nap")
    assert pid is not None
    processes.start(somewhere, "nap", command)
    assert processes.pid_of(somewhere, "nap") == pid
    processes.stop(somewhere, "nap")
    assert not processes.alive(somewhere, "nap")
    assert processes.began(pid) == ""


def test_a_pid_that_now_belongs_to_somebody_else_is_left_alone(somewhere: Places) -> None:
    processes.start(somewhere, "nap", ["sleep", "600"])
    pid = processes.pid_of(somewhere, "nap")
    assert pid is not None
    began = processes.began(pid)
    try:
        (somewhere.run / "nap.began").write_text(str(int(began) - 1))
        processes.stop(somewhere, "nap")
        assert processes.began(pid) == began
    finally:
        (somewhere.run / "nap.pid").write_text(str(pid))
        (somewhere.run / "nap.began").write_text(began)
        processes.stop(somewhere, "nap")


def test_what_does_not_happen_is_told_with_the_log(somewhere: Places) -> None:
    log = somewhere.log / "etcd.log"
    log.write_text("first\nno space left on device\n")
    with pytest.raises(BedError, match=r"(?s)not within 0 s: etcd answers; .*no space left"):
        processes.until("etcd answers", 0, lambda: False, log)


def test_a_cache_that_lacks_programs_says_how_to_make_them(somewhere: Places) -> None:
    with pytest.raises(BedError, match=r"lacks hyperkube, .* envoy, manifests: run make cluster-build"):
        boot.check_built(somewhere)


def test_a_machine_that_lacks_tools_is_told_the_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boot.os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(BedError, match=r"apt-get install --no-install-recommends .*containerd .*runc"):
        boot.check_machine()


def test_it_says_that_it_needs_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boot.os, "geteuid", lambda: 1000)
    with pytest.raises(BedError, match="needs root: run this command with sudo"):
        boot.check_machine()


def test_it_says_that_it_needs_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boot.sys, "platform", "darwin")
    with pytest.raises(BedError, match="needs Linux: use another cluster with KUBECONFIG=… make cluster-test"):
        boot.check_machine()


def test_without_a_cluster_tests_are_told_how_to_get_one(somewhere: Places) -> None:
    environment = {"PILOTLIGHT_CLUSTER_STATE": str(somewhere.state), "HOME": str(somewhere.state)}
    assert find_cluster(environment) == "no cluster: run make cluster-up, or name one with KUBECONFIG=…"


def test_an_image_needs_somebody_to_import_it(
    somewhere: Places, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PILOTLIGHT_CLUSTER_STATE", str(somewhere.state))
    monkeypatch.setenv("PILOTLIGHT_CLUSTER_CACHE", str(somewhere.cache))
    assert main(["image"]) == 1
    assert "the cluster does not run" in capsys.readouterr().err


def test_ending_what_never_ran_does_nothing(somewhere: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.rmtree(somewhere.state)
    monkeypatch.setenv("PILOTLIGHT_CLUSTER_STATE", str(somewhere.state))
    monkeypatch.setenv("PILOTLIGHT_CLUSTER_CACHE", str(somewhere.cache))
    assert main(["down"]) == 0


def test_probes_of_what_the_bed_adds_outlast_a_busy_machine() -> None:
    text = """
kind: Deployment
spec: {template: {spec: {containers: [{name: a, readinessProbe: {httpGet: {port: 1}, periodSeconds: 1}}, {name: b}]}}}
---
kind: Service
spec: {ports: []}
---
"""
    made = list(yaml.safe_load_all(addons.patient(text)))
    probed, other = made[0]["spec"]["template"]["spec"]["containers"]
    assert probed["readinessProbe"] == {
        "httpGet": {"port": 1}, "periodSeconds": 1, "timeoutSeconds": 5, "failureThreshold": 12,
    }  # fmt: skip
    assert other == {"name": "b"}
    assert made[1:] == [{"kind": "Service", "spec": {"ports": []}}]


def test_envoy_gateway_holds_no_lease_that_an_api_server_which_restarts_lets_run_out() -> None:
    settings = {"kind": "EnvoyGateway", "provider": {"type": "Kubernetes", "kubernetes": {"shutdownManager": {}}}}
    text = yaml.safe_dump({"kind": "ConfigMap", "data": {"envoy-gateway.yaml": yaml.safe_dump(settings)}})
    (made,) = yaml.safe_load_all(addons.patient(text))
    told = yaml.safe_load(made["data"]["envoy-gateway.yaml"])["provider"]["kubernetes"]
    assert told == {"shutdownManager": {}, "leaderElection": {"disable": True}}
