"""render, values and diff: manifests out, as a stream or in files, and compared with those that are there."""

import io
import json
import os
import re
from pathlib import Path

import pytest
import yaml
from tests.cli.conftest import ROOT, Call
from tests.judges.gomodules import BUILD_SECONDS

from pilotlight.k8s.manifest import APPLY_ORDER, canonical_json

IRIS = "examples/services/iris.yaml"
LATENCY = "examples/services/iris-latency.yaml"


def test_yaml_and_json_say_the_same_in_the_order_of_applying(call: Call) -> None:
    documents = list(yaml.safe_load_all(call("render", "-f", LATENCY).out))
    listed = json.loads(call("-o", "json", "render", "-f", LATENCY).out)
    assert listed["kind"] == "List"
    assert listed["items"] == documents
    ranks = [APPLY_ORDER.index(each["kind"]) for each in documents]
    assert ranks == sorted(ranks)


def test_the_public_host_follows_its_template(call: Call) -> None:
    def hosts(*flags: str) -> list[str]:
        documents = yaml.safe_load_all(call("render", "-f", LATENCY, *flags).out)
        return next(each for each in documents if each["kind"] == "HTTPRoute")["spec"]["hostnames"]  # type: ignore[no-any-return]

    assert hosts() == ["iris-latency.default.example.com", "iris-latency-default.example.com"]
    assert hosts("--host-template", "{name}-{namespace}.{domain}") == ["iris-latency-default.example.com"]
    assert hosts("--host-template", "{name}.models.test")[0] == "iris-latency.models.test"
    for wrong in ("{nam}.{domain}", "{namespace}.{domain}", "{name}_{domain}", "{name}."):
        done = call("render", "-f", LATENCY, "--host-template", wrong)
        assert done.code == 2
        assert "must be a host name with {name}, {namespace} and {domain}" in done.err


def test_our_image_comes_from_the_registry_that_was_named(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    image = "registry.example.com:5000/team/pilotlight/predictor:0.1.0"
    assert f"image: {image}\n" in call("render", "-f", IRIS, "--image-registry", "registry.example.com:5000/team/").out
    for wrong in ("https://registry.example.com", "registry.example.com/predictor:0.1.0", "a b"):
        done = call("render", "-f", IRIS, "--image-registry", wrong)
        assert done.code == 2
        assert "must be a registry such as" in done.err
    monkeypatch.setenv("PILOTLIGHT_IMAGE_REGISTRY", "registry.example.com:5000/team")
    assert f"image: {image}\n" in call("render", "-f", IRIS).out


def test_objects_that_a_service_needs_are_rendered_first_and_as_they_are(call: Call, tmp_path: Path) -> None:
    beside = "apiVersion: v1\nkind: Secret\nmetadata: {name: token}\nstringData: {TOKEN: x}\n---\n"
    beside += "apiVersion: v1\nkind: Namespace\nmetadata: {name: lab}\n---\n"
    (tmp_path / "service.yaml").write_text(beside + (ROOT / IRIS).read_text())
    done = call("render", "-n", "lab", "-f", str(tmp_path))
    namespace, secret, *rendered = yaml.safe_load_all(done.out)
    assert namespace == {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "lab"}}
    assert secret["metadata"] == {"name": "token", "namespace": "lab"}
    assert rendered == list(yaml.safe_load_all(call("render", "-n", "lab", "-f", IRIS).out))


def test_credentials_of_a_trigger_may_stand_beside_the_service(call: Call, tmp_path: Path) -> None:
    beside = "apiVersion: keda.sh/v1alpha1\nkind: TriggerAuthentication\nmetadata: {name: prom}\nspec: {env: []}\n"
    wish = """
    autoScaling:
      metrics:
      - type: External
        external:
          metric: {backend: prometheus, query: sum(x)}
          target: {type: Value, value: "2"}
          authenticationRef: {authModes: bearer, authenticationRef: {name: prom}}
"""
    (tmp_path / "service.yaml").write_text((ROOT / LATENCY).read_text().rstrip() + wish)
    (tmp_path / "credentials.yaml").write_text(beside)
    credentials, *rendered = yaml.safe_load_all(call("render", "-n", "lab", "-f", str(tmp_path)).out)
    assert (credentials["kind"], credentials["metadata"]) == (
        "TriggerAuthentication",
        {"name": "prom", "namespace": "lab"},
    )
    (scaled,) = [each for each in rendered if each["kind"] == "ScaledObject"]
    assert {"name": "prom"} in [trigger.get("authenticationRef") for trigger in scaled["spec"]["triggers"]]
    (tmp_path / "credentials.yaml").write_text(beside.replace("v1alpha1", "v2"))
    told = 'PL110: apiVersion: is "keda.sh/v2", must be keda.sh/v1alpha1 for kind TriggerAuthentication'
    assert told in call("render", "-f", str(tmp_path)).err


def test_a_file_of_this_machine_is_warned_of_where_manifests_are_for_a_cluster(call: Call, tmp_path: Path) -> None:
    document = (ROOT / IRIS).read_text()
    (tmp_path / "service.yaml").write_text(re.sub(r"storageUri: \S+", "storageUri: ./model.onnx", document))
    for words in (("render",), ("values",), ("deploy", "--target", "kubernetes", "--dry-run=client")):
        done = call(*words, "-f", str(tmp_path / "service.yaml"))
        assert "./model.onnx is on this machine, where pods cannot read it; upload it to a store" in done.err
    assert "is on this machine" not in call("render", "--target", "local", "-f", str(tmp_path / "service.yaml")).err


def test_a_variable_that_names_the_cluster_is_in_the_hint_where_there_is_none(
    call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("PILOTLIGHT_TARGET", "kubernetes")
    for verb in ("render", "validate"):
        done = call(verb, "-f", IRIS)
        assert done.code == 3
        assert done.err.endswith("; to plan for a cluster without a connection: --target cluster\n")
        assert call(verb, "-f", IRIS, "--target", "cluster").code == 0


def test_a_format_that_the_verb_does_not_have_is_a_usage_error(call: Call) -> None:
    done = call("-o", "table", "render", "-f", IRIS)
    assert done.code == 2
    assert done.out == ""
    assert "table is not one of yaml, json" in done.err


@pytest.mark.parametrize("form", ["yaml", "json"])
def test_split_writes_one_file_per_object_and_prints_their_names(form: str, call: Call, tmp_path: Path) -> None:
    folder = tmp_path / "out" / "manifests"
    done = call("render", "-f", LATENCY, "--split", str(folder), "-o", form)
    files = [Path(line) for line in done.out.splitlines()]
    assert sorted(files) == sorted(folder.iterdir())
    found = [yaml.safe_load(path.read_text()) for path in files]
    rendered = list(yaml.safe_load_all(call("render", "-f", LATENCY).out))
    assert sorted(map(json.dumps, found)) == sorted(map(json.dumps, rendered))
    assert folder / f"12-default-deployment-iris-latency-predictor.{form}" in files


def test_split_removes_what_it_rendered_before_and_nothing_else(call: Call, tmp_path: Path) -> None:
    foreign = {"notes.yaml": "kind: Mine", "12-default-deployment-mine.yaml": "kind: Deployment", "README.md": "text"}
    for name, text in foreign.items():
        (tmp_path / name).write_text(text)
    call("render", "-f", LATENCY, "--split", str(tmp_path))
    done = call("render", "-f", IRIS, "--split", str(tmp_path))
    assert "12-default-deployment-iris-latency-predictor.yaml: it is no longer rendered" in done.err
    left = {path.name for path in tmp_path.iterdir()}
    assert {Path(line).name for line in done.out.splitlines()} == left - foreign.keys()
    assert {name: (tmp_path / name).read_text() for name in foreign} == foreign


def test_values_are_those_of_one_service(call: Call) -> None:
    values = yaml.safe_load(call("values", "iris", "-f", "examples/services").out)
    assert values["name"] == "iris"
    assert values["workloads"][0]["scaling"]["maxReplicas"] == 3
    assert json.loads(call("values", "-f", IRIS, "-o", "json").out) == values
    several = call("values", "-f", "examples/services")
    assert several.code == 2
    assert "default/iris" in several.err
    assert "name one of them" in several.err


def test_diff_is_empty_and_ends_with_0_where_nothing_differs(call: Call, tmp_path: Path) -> None:
    call("render", "-f", IRIS, "--split", str(tmp_path))
    done = call("diff", "-f", IRIS, "--against", str(tmp_path))
    assert (done.code, done.out) == (0, "")
    assert "no difference" in done.err


def test_diff_shows_each_change_and_ends_with_1(call: Call, tmp_path: Path) -> None:
    file = tmp_path / "old.json"
    file.write_text(call("render", "-f", LATENCY, "-o", "json").out)
    flags = ("--set", "spec.predictor.maxReplicas=11")
    done = call("diff", "-f", LATENCY, *flags, "--against", str(file))
    assert done.code == 1
    assert "-  maxReplicaCount: 10" in done.out.splitlines()
    assert "+  maxReplicaCount: 11" in done.out.splitlines()
    assert "1 changed" in done.err
    (change,) = json.loads(call("diff", "-f", LATENCY, *flags, "--against", str(file), "-o", "json").out)
    assert (change["change"], change["kind"], change["name"]) == ("changed", "ScaledObject", "iris-latency-predictor")


def test_diff_tells_what_would_come_and_go(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    old = call("render", "-f", IRIS).out
    monkeypatch.setattr("sys.stdin", io.StringIO(old))
    done = call(
        "diff",
        "-f",
        IRIS,
        "--default-mode",
        "raw",
        "--set",
        "spec.predictor.minReplicas=1",
        "--against",
        "-",
        "-o",
        "json",
    )
    assert done.code == 1
    changes = {(change["kind"], change["group"]): change["change"] for change in json.loads(done.out)}
    assert changes["Deployment", "apps"] == "added"
    assert changes["Service", "serving.knative.dev"] == "removed"


def test_diff_leaves_other_peoples_objects_out_and_says_so(call: Call, tmp_path: Path) -> None:
    file = tmp_path / "all.yaml"
    other = call("render", "-f", LATENCY).out
    file.write_text(call("render", "-f", IRIS).out + other)
    done = call("diff", "-f", IRIS, "--against", str(file))
    assert (done.code, done.out) == (0, "")
    assert "not compared, of no service here: ServiceAccount iris-latency" in done.err


def test_diff_reads_objects_that_people_wrote_by_hand(call: Call, tmp_path: Path) -> None:
    file = tmp_path / "old.yaml"
    metadata = "{name: iris, namespace: default, annotations: null, labels: null}"
    file.write_text(f"apiVersion: v1\nkind: ServiceAccount\nmetadata: {metadata}\n")
    done = call("diff", "-f", IRIS, "--against", str(file), "-o", "json")
    assert done.code == 1
    changes = {change["kind"]: change["change"] for change in json.loads(done.out)}
    assert changes["ServiceAccount"] == "changed"


def test_what_is_no_object_is_refused_with_its_place(call: Call, tmp_path: Path) -> None:
    file = tmp_path / "old.yaml"
    file.write_text("apiVersion: v1\nkind: Service\nmetadata: {}\n---\nkind: [\n")
    done = call("diff", "-f", IRIS, "--against", str(file))
    assert done.code == 2
    assert f"{file}:6:1: error PL100" in done.err
    file.write_text("apiVersion: v1\nkind: Service\nmetadata: {}\n")
    assert f"{file}:1:1: error PL110: metadata.name" in call("diff", "-f", IRIS, "--against", str(file)).err


@pytest.mark.timeout(BUILD_SECONDS)
def test_helm_renders_the_same_objects(call: Call, real_helm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(Path(real_helm).parent), prepend=os.pathsep)
    done = call("render", "-f", LATENCY, "--with", "helm")
    assert done.code == 0, done.err
    ours = list(yaml.safe_load_all(call("render", "-f", LATENCY).out))
    assert sorted(map(canonical_json, yaml.safe_load_all(done.out))) == sorted(map(canonical_json, ours))


def test_without_helm_its_absence_is_said(call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    done = call("render", "-f", LATENCY, "--with", "helm")
    assert (done.code, done.out) == (1, "")
    assert "error: helm is not on the PATH\n  install helm 3 " in done.err


def test_what_helm_says_is_told(call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "helm").write_text("#!/bin/sh\necho 'values do not fit' >&2\nexit 7\n")
    (tmp_path / "helm").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    done = call("render", "-f", LATENCY, "--with", "helm")
    assert (done.code, done.out) == (1, "")
    assert "helm template failed: values do not fit" in done.err
