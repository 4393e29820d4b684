"""Pods of manifests as processes: variables, folders, volumes and the image."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.platform.targets.local.manifests.objects import container, deployment, refusals
from tests.platform.targets.local.rendering import document, rendered, revision

from pilotlight.microservices.registry.container_command import CommandInputs, build, parse
from pilotlight.targets.local.manifests.interpret import interpret, revisions_of
from pilotlight.targets.local.manifests.service_spec_types import Fetch, Mount, Probe, RevisionSpec

Json = Any
VLLM = "vllm/vllm-openai:v1"
TEXT = build("pilotlight", CommandInputs("job", "iris", parse("/models/it's here; rm $HOME"), {}))


def test_variables_come_from_everywhere_that_a_pod_could_get_them_from() -> None:
    companions = (
        {"kind": "Secret", "metadata": {"name": "s"}, "data": {"token": "aGVsbG8="}, "stringData": {"plain": "x"}},
        {"kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"level": "3"}},
    )
    env = [
        {"name": "PLAIN", "value": "1"},
        {"name": "JOINED", "value": "$(PLAIN)-$(SET_level)-$(UNKNOWN)-$$(PLAIN)"},
        {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "token"}}},
        {"name": "LEVEL", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "level"}}},
        {"name": "MAYBE", "valueFrom": {"secretKeyRef": {"name": "none", "key": "x", "optional": True}}},
        {"name": "WHERE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
        {"name": "WHO", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "LABEL", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['a/b']"}}},
        {"name": "ADDRESS", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
    ]
    found = container(
        *companions, env=env, envFrom=[{"configMapRef": {"name": "c"}, "prefix": "SET_"}], args=["$(PLAIN)"]
    )
    assert {key: value for key, value in found.env.items() if key != "PILOTLIGHT_REVISION"} == {
        "SET_level": "3", "PLAIN": "1", "JOINED": "1-3-$(UNKNOWN)-$(PLAIN)", "TOKEN": "hello", "LEVEL": "3",
        "WHERE": "lab", "LABEL": "c", "ADDRESS": "127.0.0.1",
    }  # fmt: skip
    assert (found.replica_env, found.args) == (("WHO",), ("1",))
    assert container(imagePullPolicy="Never").pull_policy == "Never"


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ({"secretKeyRef": {"name": "s", "key": "x"}}, "Secret s is not in the manifests; add it, or write"),
        ({"configMapKeyRef": {"name": "c", "key": "x"}}, "key x of ConfigMap c is not in the manifests"),
        ({"fieldRef": {"fieldPath": "spec.nodeX"}}, "spec.nodeX needs a pod; write a value"),
        ({"resourceFieldRef": {"resource": "limits.cpu"}}, "resourceFieldRef is not supported here; write a value"),
    ],
)
def test_a_variable_without_a_value_is_named(source: Json, sentence: str) -> None:
    companion = {"kind": "ConfigMap", "metadata": {"name": "c"}, "data": {}}
    (line,) = refusals(deployment({"env": [{"name": "X", "valueFrom": source}]}), companion)
    assert line.startswith(f"Deployment iris-engine: env X: {sentence}")


def test_a_folder_of_the_node_is_the_folder_of_this_machine() -> None:
    pod = {"volumes": [{"name": "m", "hostPath": {"path": "/data/models/"}}, {"name": "e", "emptyDir": {}}]}
    mounts = [{"name": "m", "mountPath": "/mnt/models", "subPath": "iris"}, {"name": "e", "mountPath": "/tmp"}]
    env = [{"name": "INFERENCE_MODEL_PATH", "value": "/mnt/models/1"}, {"name": "OTHER", "value": "/mnt/models2"}]
    found = container(pod=pod, volumeMounts=mounts, env=env, args=["--model_dir=/mnt/models", "/mnt"])
    assert found.env["INFERENCE_MODEL_PATH"] == "/data/models/iris/1"
    assert found.env["OTHER"] == "/mnt/models2"
    assert found.args == ("--model_dir=/data/models/iris", "/mnt")


def test_what_an_init_container_would_fetch_is_fetched_by_the_predictor(tmp_path: Path) -> None:
    made = document(raw=True, storageUris=[{"uri": "s3://models/iris"}])
    del made["spec"]["predictor"]["model"]["storageUri"]
    assert revision(tmp_path, made).container.env["INFERENCE_MODEL_PATH"] == "s3://models/iris"


def test_a_second_source_that_nothing_names_is_refused(tmp_path: Path) -> None:
    made = document(
        raw=True, storageUris=[{"uri": "s3://a/b", "mountPath": "/mnt/a"}, {"uri": "s3://c", "mountPath": "/mnt/c"}]
    )
    del made["spec"]["predictor"]["model"]["storageUri"]
    (line,) = refusals(*rendered(tmp_path, made))
    assert "s3://c is fetched into /mnt/c, which no variable refers to" in line


@pytest.mark.parametrize(
    ("volume", "sentence"),
    [
        (
            {"persistentVolumeClaim": {"claimName": "x"}},
            "is a volume claim, which this machine does not have; use a local",
        ),
        ({"csi": {"driver": "x"}}, "is a CSI volume, which this machine does not have"),
        ({"secret": {"secretName": "x"}}, "files of a secret are not supported; use env"),
    ],
)
def test_a_volume_that_cannot_be_here_is_refused(volume: Json, sentence: str) -> None:
    made = deployment({"volumeMounts": [{"name": "v", "mountPath": "/mnt/x"}]}, {"volumes": [{"name": "v", **volume}]})
    (line,) = refusals(made)
    assert line.startswith("Deployment iris-engine: volume v")
    assert sentence in line


@pytest.mark.parametrize(
    ("image", "runs"),
    [
        ("pilotlight/predictor:0.1.0", True),
        ("registry.local:5000/pilotlight/predictor@sha256:00", True),
        ("pilotlight/predictor-of-mine", False),
        ("mypilotlight/predictor", False),
        ("vllm/vllm-openai-of-mine:v1", False),
        ("ghcr.io/ggml-org/llama.cpp:server", True),
    ],
)
def test_only_our_own_image_and_those_of_engines_run(image: str, runs: bool) -> None:
    made = deployment({"image": image, "readinessProbe": {"exec": {}}} if not runs else {"image": image})
    if runs:
        assert interpret([made]).workloads[0].revision.container.image == image
        return
    (line,) = refusals(made)
    assert line.startswith(
        f"Deployment iris-engine: image {image}: only the Pilotlight predictor and engines (vLLM, SGLang, llama.cpp)"
        " run "
        "without containers; use --target docker, or platformctl render for a cluster"
    )


def on(target: str, made: Json, **options: str) -> Json:
    """The same manifest for another target."""
    annotations = {"pilotlight.dev/target": target, "pilotlight.dev/target-options": json.dumps(options)}
    made["spec"]["template"].setdefault("metadata", {}).setdefault("annotations", {}).update(annotations)
    return made


def stateful(**container: Json) -> Json:
    return {**deployment(container), "kind": "StatefulSet"}


def only(*manifests: Json) -> RevisionSpec:
    return interpret(manifests).workloads[0].revision


def test_an_engine_on_this_machine_keeps_its_command_and_reads_the_model_where_it_is() -> None:
    fetch = {"name": "fetch", "image": "pilotlight/predictor:1", "env": [{"name": "AWS_REGION", "value": "x"}],
             "command": ["python", "-m", "pilotlight_predictor", "fetch", "s3://b/m", "/mnt/fetched"]}  # fmt: skip
    pod = {"volumes": [{"name": "model", "hostPath": {"path": "/data/m"}}], "initContainers": [fetch]}
    found = container(
        pod=pod, image=VLLM, command=["vllm", "serve"], args=["/mnt/models", "--tokenizer=/mnt/fetched"],
        volumeMounts=[{"name": "model", "mountPath": "/mnt/models"}],
        readinessProbe={"httpGet": {"path": "/health", "port": 8080}},
    )  # fmt: skip
    assert (found.command, found.args) == (("vllm", "serve"), ("/data/m", "--tokenizer=/mnt/fetched"))
    assert found.fetches == (Fetch("s3://b/m", "/mnt/fetched", {"AWS_REGION": "x"}),)
    assert (found.readiness, found.mounts) == (Probe("/health", 8080), ())


@pytest.mark.parametrize(("target", "options"), [("docker", {}), ("slurm", {"container": "pyxis"})])
def test_a_target_with_containers_runs_any_image_and_command(target: str, options: dict[str, str]) -> None:
    pod = {
        "volumes": [
            {"name": "host", "hostPath": {"path": "/data/"}},
            {"name": "model", "emptyDir": {}},
        ],
        "initContainers": [
            {
                "name": "storage-initializer",
                "image": "pilotlight/predictor:0.1.0",
                "command": ["python", "-m", "pilotlight_predictor", "fetch", "s3://b/m", "/mnt/models/"],
                "env": [
                    {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}},
                    {"name": "AWS_SECRET_ACCESS_KEY", "valueFrom": {"secretKeyRef": {"name": "iris", "key": "K"}}},
                ],
            }
        ],
    }
    fields = {
        "image": VLLM,
        "command": ["/bin/sh", "-c", "serve /mnt/models"],
        "args": ["--cache=/cache/x"],
        "volumeMounts": [
            {"name": "host", "mountPath": "/cache/", "subPath": "a", "readOnly": True},
            {"name": "model", "mountPath": "/mnt/models"},
        ],
    }
    hub = {"kind": "Secret", "metadata": {"name": "hub"}, "stringData": {"token": "t"}}
    made = on(target, deployment(fields, pod), **options)
    found = only(made, hub)
    assert (found.target, found.container.options) == (target, options)
    assert found.container.command == ("/bin/sh", "-c", "serve /mnt/models")
    assert found.container.args == ("--cache=/cache/x",)
    assert found.container.mounts == (Mount("/data/a", "/cache", read_only=True),)
    secret = (("AWS_SECRET_ACCESS_KEY", "iris", "K"),)
    assert found.container.fetches == (Fetch("s3://b/m", "/mnt/models", {"HF_TOKEN": "t"}, secret),)
    ((_, _, stored),) = revisions_of([made, hub])
    assert only(*stored).container == found.container


def test_a_slurm_job_without_a_container_runs_our_predictor_on_the_paths_of_this_machine() -> None:
    pod = {"volumes": [{"name": "m", "hostPath": {"path": "/data"}}]}
    mounts = [{"name": "m", "mountPath": "/mnt"}]
    made = on("slurm", deployment({"volumeMounts": mounts, "args": ["/mnt/iris"]}, pod), partition="gpu")
    found = only(made).container
    assert (found.args, found.mounts, found.options) == (("/data/iris",), (), {"partition": "gpu"})
    (line,) = refusals(on("slurm", deployment({"image": VLLM})))
    assert "--target-option container=pyxis, enroot, apptainer or singularity" in line


def test_what_no_container_can_have_is_refused_on_docker_too() -> None:
    pod = {
        "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "x"}}],
        "containers": [
            {"image": VLLM, "volumeMounts": [{"name": "v", "mountPath": "/v"}], "readinessProbe": {"exec": {}}},
            {"name": "side", "image": "x"},
        ],
        "initContainers": [{"name": "init", "image": "x"}],
    }
    found = refusals(on("docker", deployment(pod=pod)))
    assert [line.removeprefix("Deployment iris-engine: ").split(":")[0] for line in found] == [
        "container side (x)", "init container init (x)", "volume v at /v is a volume claim, which this machine does "
        "not have; use a local path, a hostPath or a URI such as s3", "readinessProbe",
    ]  # fmt: skip
    assert "a replica is one container here" in found[0]


def isolated(made: Json, how: str = "data") -> Json:
    made["spec"]["template"]["metadata"].setdefault("annotations", {})["pilotlight.dev/isolation"] = how
    return made


def test_isolation_of_a_model_is_read_and_such_a_model_does_not_park() -> None:
    parking = {"env": [{"name": "INFERENCE_PARK_MEMORY", "value": "50%"}]}
    found = only(isolated(deployment(parking), "sandbox")).container
    assert (found.isolation, found.parks) == ("sandbox", False)
    assert (only(deployment(parking)).container.isolation, only(deployment(parking)).container.parks) == ("", True)
    text = isolated(stateful(command=["/bin/sh", "-c", TEXT]))
    assert only(text).container.isolation == "data"


@pytest.mark.parametrize(
    ("made", "problem"),
    [
        (isolated(deployment(), "none"), "isolation = none: must be data or sandbox"),
        (
            on("docker", isolated(deployment())),
            "only processes of the target local, not of docker",
        ),
        (
            on("slurm", isolated(deployment())),
            "only processes of the target local, not of slurm",
        ),
        (
            isolated(deployment({"command": ["python", "-m", "pilotlight.gateway", "route"]})),
            "this is a router",
        ),
        (isolated(deployment({"ports": [{"containerPort": 8080, "hostPort": 9000}]})), "remove hostPort"),
        (isolated(deployment({"image": VLLM, "args": ["/m"]})), "only the Pilotlight predictor; use --target docker"),
    ],
)
def test_isolation_that_would_have_no_effect_is_refused(made: Json, problem: str) -> None:
    (line,) = refusals(made)
    assert line.startswith("Deployment iris-engine: annotation pilotlight.dev/isolation = ")
    assert problem in line


def test_an_engine_that_can_sleep_and_parks_gets_the_flags_for_it() -> None:
    made = deployment({"image": "vllm/vllm-openai:v1", "args": ["/m"], "resources": {"limits": {"nvidia.com/gpu": 1}}})
    plain = only(made).container
    made["spec"]["template"]["metadata"]["annotations"] = {"pilotlight.dev/park": "true"}
    found = only(made).container
    assert (plain.parks, plain.args, found.parks) == (False, ("/m",), True)
    assert (found.args, found.env["VLLM_SERVER_DEV_MODE"]) == (("/m", "--enable-sleep-mode"), "1")
    container = made["spec"]["template"]["spec"]["containers"][0]
    container["ports"] = [{"containerPort": 8000, "hostPort": 8000}]
    published = only(made).container
    assert (published.args, "VLLM_SERVER_DEV_MODE" in published.env) == (("/m",), False)
    container["resources"] = {}
    assert not only(made).container.parks


def test_a_target_or_options_that_nobody_knows_are_refused() -> None:
    (line,) = refusals(on("nomad", deployment({"image": VLLM})))
    assert line.endswith("annotation pilotlight.dev/target = nomad: must be one of local, docker, slurm, lepton, brev")
    made = on("docker", deployment())
    for text in ("[]", "{"):
        made["spec"]["template"]["metadata"]["annotations"]["pilotlight.dev/target-options"] = text
        (line,) = refusals(made)
        assert "pilotlight.dev/target-options: must be a JSON object" in line


@pytest.mark.parametrize(
    ("written", "probe"),
    [
        ({"tcpSocket": {"port": "web"}}, Probe("", 9000, kind="tcp")),
        ({"grpc": {"port": 9001}}, Probe("", 9001, kind="tcp")),
        ({"httpGet": {"port": 9002, "scheme": "HTTPS"}}, Probe("", 9002, kind="tcp")),
        ({"httpGet": {"path": "/health"}}, Probe("/health", 9000)),
        ({"httpGet": {}}, Probe("", 9000, kind="tcp")),
    ],
)
def test_a_foreign_server_is_probed_as_written(written: Json, probe: Probe) -> None:
    ports = [{"containerPort": 9000, "name": "web"}]
    fields = {"image": VLLM, "readinessProbe": written, "ports": ports}
    assert only(on("docker", deployment(fields))).container.readiness == probe


def test_only_a_microservice_of_ours_is_probed_by_tcp() -> None:
    fields = {"readinessProbe": {"tcpSocket": {"port": 8080}}}
    assert only(stateful(**fields)).container.readiness == Probe("/v2/health/ready", 8080)
    env = [{"name": "INFERENCE_MICROSERVICE", "value": "true"}]
    assert only(stateful(**fields, env=env)).container.readiness == Probe("", 8080, kind="tcp")


def test_a_port_of_the_machine_goes_to_the_only_replica_of_a_workload() -> None:
    ports = [{"containerPort": 8080, "hostPort": 9100, "hostIP": "127.0.0.1"}]
    found = only(on("docker", stateful(image=VLLM, ports=ports))).container
    assert (found.port, found.host_port, found.host_ip) == (8080, 9100, "127.0.0.1")
    recreated = deployment({"image": VLLM, "ports": ports})
    recreated["spec"] |= {"replicas": 1, "strategy": {"type": "Recreate"}}
    assert only(on("docker", recreated)).container.host_port == 9100
    pair = stateful(ports=ports)
    pair["spec"]["replicas"] = 2
    for made in (deployment({"ports": ports}), pair):
        (line,) = refusals(on("docker", made))
        assert "hostPort = 9100: replicas cannot share a host port" in line


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("slurm", "A,ALL"),
        ("slurm", "a.b"),
        ("brev", "A;touch x;B"),
        ("docker", "A=B"),
        ("docker", "1"),
        ("local", "A\nB"),
    ],
)
def test_a_variable_whose_name_a_shell_could_read_otherwise_is_refused(target: str, name: str) -> None:
    source = {"kind": "ConfigMap", "metadata": {"name": "c"}, "data": {name: "v"}}
    for env in ({"env": [{"name": name, "value": "v"}]}, {"envFrom": [{"configMapRef": {"name": "c"}}]}):
        (line,) = refusals(on(target, deployment(env)), source)
        assert f"env {name!r}: a name must match [A-Za-z_]" in line
    for taken in ("docker", "local"):
        assert only(on(taken, deployment({"env": [{"name": "a.b-c", "value": "v"}]}))).container.env["a.b-c"] == "v"


def test_a_host_ip_is_an_address() -> None:
    ports = [{"containerPort": 8080, "hostPort": 9100, "hostIP": "127.0.0.1; touch x;"}]
    (line,) = refusals(on("docker", stateful(image=VLLM, ports=ports)))
    assert "hostIP = '127.0.0.1; touch x;': must be an IP address" in line


def test_on_this_machine_only_a_microservice_has_a_port_of_its_own() -> None:
    ports = [{"containerPort": 8080, "hostPort": 9100}]
    assert only(stateful(ports=ports)).container.host_port == 0
    env = [{"name": "INFERENCE_MICROSERVICE", "value": "true"}]
    assert only(stateful(ports=ports, env=env)).container.host_port == 9100
    assert only(deployment({"ports": ports, "env": env})).container.host_port == 0


def test_access_rules_are_refused_where_the_gateway_is_not_the_only_way_to_a_server() -> None:
    made = on("docker", deployment({"image": VLLM}))
    made["metadata"]["annotations"] = {"pilotlight.dev/rate-limit": "1/1s"}
    (line,) = refusals(made)
    assert line.startswith("iris-engine: other users of its machine can bypass the gateway")
    assert "pilotlight.dev/rate-limit" in line
    made["spec"]["template"]["spec"]["containers"][0]["image"] = "pilotlight/predictor:0.1.0"
    assert interpret([made]).access == {"pilotlight.dev/rate-limit": "1/1s"}


def test_values_of_the_own_secret_need_not_be_among_the_documents() -> None:
    source = {"secretKeyRef": {"name": "iris", "key": "token"}}
    found = container(env=[{"name": "HF_TOKEN", "valueFrom": source}])
    assert found.secret_env == (("HF_TOKEN", "iris", "token"),)
    assert "HF_TOKEN" not in found.env


def test_a_microservice_is_a_document(tmp_path: Path) -> None:
    main = {
        "name": "main",
        "image": "pilotlight/predictor:0.1.0",
        "command": ["/bin/sh", "-c", TEXT],
        "env": [{"name": "INFERENCE_MICROSERVICE", "value": "true"}],
        "ports": [{"containerPort": 8080, "hostPort": 9100, "hostIP": "127.0.0.1"}],
        "readinessProbe": {"tcpSocket": {"port": 8080}, "periodSeconds": 2},
        "resources": {"requests": {"memory": "1Gi"}},
    }
    made = document(annotations={"serving.kserve.io/deploymentMode": "Stateful"}, containers=[main], minReplicas=1)
    made["metadata"]["labels"] = {"networking.knative.dev/visibility": "cluster-local"}
    del made["spec"]["predictor"]["model"]
    spec = interpret(rendered(tmp_path, made))
    assert not spec.exposed
    found = spec.workloads[0].revision.container
    assert found.command == ()
    assert found.args[-2:] == ("--model-path", "/models/it's here; rm $HOME")
    assert (found.host_port, found.host_ip, found.memory_limit) == (9100, "127.0.0.1", None)
    assert found.readiness == Probe("", 8080, period_s=2.0, kind="tcp")


@pytest.mark.parametrize(
    "command",
    [
        ["/bin/sh", "-c", f"{TEXT}; id"],
        ["/bin/sh", "-c", f"{TEXT} $(id)"],
        ["/bin/sh", "-c", f"{TEXT} `id`"],
        ["/bin/sh", "-c", f"{TEXT} | tee /tmp/x"],
        ["/bin/sh", "-c", f"{TEXT} > /tmp/x"],
        ["/bin/sh", "-c", f"{TEXT}\nid"],
        ["/bin/sh", "-c", f"id; {TEXT}"],
        ["/bin/sh", "-c", TEXT, "x"],
        ["/bin/sh", "-xc", TEXT],
        ["bash", "-c", TEXT],
        ["/bin/sh", "-c", "exec sleep 600 # pilotlight_predictor"],
    ],
)
def test_a_shell_that_does_anything_but_start_our_predictor_is_refused(command: list[str]) -> None:
    text = "\n".join(refusals(deployment({"command": command})))
    assert "only the image's own programs are supported here" in text
    assert only(on("docker", deployment({"command": command}))).container.command == tuple(command)


def test_the_label_of_visibility_hides_only_stateful_services() -> None:
    label = {"networking.knative.dev/visibility": "cluster-local"}
    hidden, shown = stateful(), deployment()
    for made in (hidden, shown):
        made["metadata"]["labels"].update(label)
    assert not interpret([hidden]).exposed
    assert interpret([shown]).exposed
    assert interpret([stateful()]).exposed
