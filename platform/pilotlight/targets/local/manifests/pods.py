"""Pod template → container of a replica, or its process: environment as the kubelet builds it, paths, probes. Pure.

Where the target has containers, hostPaths are mounted and models fetched before the start. Without containers a
hostPath maps to itself, and a folder that an init container of the platform fetches maps to the URI, which the
predictor fetches itself; for an engine it is fetched before the start. An emptyDir needs nothing, nor do the access
rules of the service, which the gateway enforces before every replica. Any other volume is refused.
"""

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from typing import Any, Final, Literal

from pilotlight.catalogue.engine_programs import engine_command
from pilotlight.contract import ENV_ACCESS_FILE, GRPC_PORT, HTTP_PORT, is_predictor_image
from pilotlight.k8s import names
from pilotlight.k8s.model_pins import decode
from pilotlight.k8s.quantities import gpu_sharing
from pilotlight.targets.local.manifests.object_lookup import SOURCES, Objects, at, mapping_at
from pilotlight.targets.local.manifests.service_spec_types import ContainerSpec, Fetch, Mount, Probe
from pilotlight.targets.local.scaling.from_manifests import quantity_of

Json = Any
_REFERENCE: Final = re.compile(r"\$(\$|\(([A-Za-z_.-][A-Za-z0-9_.-]*)\))")
_ENTRY: Final = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")
# Downward API: every replica is a process of this machine.
_HERE: Final = {"status.podIP": "127.0.0.1", "status.hostIP": "127.0.0.1", "spec.nodeName": "localhost"}
_OWN_NAME: Final = ("metadata.name", "metadata.uid")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_SHELL_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
SHELLS: Final = ("slurm", "brev")  # targets with scripts that export variables
PathMap = Mapping[str, str]
Key = tuple[str, str]  # namespace and service
_NAMES: Final = {
    "persistentVolumeClaim": "a volume claim",
    "csi": "a CSI volume",
    "image": "an image",
    "nfs": "an NFS share",
    "ephemeral": "a volume claim",
}
_FILES: Final = ("secret", "configMap", "projected", "downwardAPI")
GPU: Final = "nvidia.com/gpu"
ELSEWHERE: Final = "use --target kubernetes"
NO_CONTAINER: Final = (
    "a job without a container runs only the Pilotlight predictor; choose a container runtime with "
    "--target-option container=pyxis, enroot, apptainer or singularity"
)
FOREIGN: Final = (
    "only the Pilotlight predictor and engines (vLLM, SGLang, llama.cpp) run without containers; use --target docker, "
    "or platformctl render for a cluster"
)
# Programs of the image: predictor (the default) and router.
PROGRAMS: Final = (("-m", "pilotlight_predictor"), ("-m", "pilotlight.gateway"))
# How microservices start it: microservices/registry/container_command.py.
_SHELL: Final = re.compile(r'umask 0 && exec "\$\{PILOTLIGHT_PYTHON:-python\}" -m pilotlight_predictor (.+)')
PROBES: Final = ("startupProbe", "readinessProbe", "livenessProbe")
READY_PATH: Final = "/v2/health/ready"
_DEVICES: Final = ("nvidia.com/mig-", "amd.com/", "gpu.intel.com/", "habana.ai/", "google.com/tpu")


@dataclass(frozen=True, slots=True)
class PodRules:
    """What the launcher of a target can run of a pod."""

    replica: str  # what a replica is
    foreign_images: bool = False  # and commands
    engines: bool = False  # foreign images that name an engine (catalogue/engine_programs.yaml)
    mounts: bool = False  # of hostPaths, and of models that are fetched before the start; else paths are replaced
    hint: str = ""  # what to do with a foreign image where none can run
    wakes: bool = True  # a request can wait for the start of a replica


LOCAL: Final = PodRules("process", engines=True, hint=FOREIGN)
DOCKER: Final = PodRules("container", foreign_images=True, mounts=True)
SLURM: Final = replace(DOCKER, wakes=False)
REMOTE: Final = SLURM  # its target refuses what a cloud cannot mount
SLURM_PROCESS: Final = PodRules("process", hint=NO_CONTAINER)  # its node has the files of this machine
RULES: Final[Mapping[str, PodRules]] = {
    "local": LOCAL, "docker": DOCKER, "slurm": SLURM, "lepton": REMOTE, "brev": REMOTE,
}  # fmt: skip


def rules_of(target: str, options: Mapping[str, str], refused: list[str]) -> PodRules:
    if target not in RULES:
        refused.append(f"annotation {names.ANNOTATION_TARGET} = {target}: must be one of {', '.join(RULES)}")
    if target == "slurm" and options.get("container", "none") == "none":
        return SLURM_PROCESS
    return RULES.get(target, DOCKER)


def target_of(template: Mapping[str, Json]) -> str:
    return str(mapping_at(template, "metadata", "annotations").get(names.ANNOTATION_TARGET) or "local")


def _options(annotations: Mapping[str, Json], refused: list[str]) -> dict[str, str]:
    try:
        options = json.loads(annotations.get(names.ANNOTATION_TARGET_OPTIONS, "{}"))
        return {name: str(value) for name, value in options.items()}
    except (AttributeError, TypeError, ValueError):
        refused.append(
            f'annotation {names.ANNOTATION_TARGET_OPTIONS}: must be a JSON object, as in {{"partition": "gpu"}}'
        )
        return {}


@dataclass(slots=True)
class Variables:
    """Variables of a container. `own_name` are set to the replica's name at its start; `refused` are problems."""

    values: dict[str, str] = field(default_factory=dict)
    own_name: list[str] = field(default_factory=list)
    secret: list[tuple[str, str, str]] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)


def variables_of(container: Mapping[str, Json], metadata: Mapping[str, Json], key: Key, objects: Objects) -> Variables:
    """Return the variables; `metadata` is the pod template's, `key` the namespace and name of the service."""
    env = Variables()
    for source in container.get("envFrom") or ():
        env.values.update(_from_source(source, objects, env.refused))
    for entry in container.get("env") or ():
        name = str(entry["name"])
        if "valueFrom" not in entry:
            env.values[name] = expanded(str(entry.get("value") or ""), env.values)
            continue
        path = str(at(entry, "valueFrom", "fieldRef", "fieldPath") or "")
        if path in _OWN_NAME:
            env.own_name.append(name)
        elif path:
            value = key[0] if path == "metadata.namespace" else _HERE.get(path)
            if labelled := _ENTRY.fullmatch(path):
                value = str(mapping_at(metadata, labelled[1]).get(labelled[2], ""))
            _put(env, name, value, f"{path} needs a pod; write a value")
        else:
            _from_key(env, name, entry["valueFrom"], key[1], objects)
    allowed = _SHELL_NAME if target_of({"metadata": metadata}) in SHELLS else _NAME
    every = (*env.values, *env.own_name, *(name for name, _, _ in env.secret))
    env.refused += [
        f"env {name!r}: a name must match {allowed.pattern}" for name in every if not allowed.fullmatch(name)
    ]
    return env


def expanded(text: str, values: Mapping[str, str]) -> str:
    """Expand `$(NAME)` of known variables, leave others; `$$` is a dollar."""

    def replacement(match: re.Match[str]) -> str:
        return "$" if match[1] == "$" else values.get(match[2], match[0])

    return _REFERENCE.sub(replacement, text)


def _put(env: Variables, name: str, value: str | None, otherwise: str) -> None:
    if value is None:
        env.refused.append(f"env {name}: {otherwise}")
    else:
        env.values[name] = value


def _from_key(env: Variables, name: str, source: Mapping[str, Json], service: str, objects: Objects) -> None:
    """Set a variable from one entry of a Secret or ConfigMap; the service's own Secret need not be a document."""
    source_field = next((each for each in SOURCES if each.endswith("KeyRef") and each in source), "")
    if not source_field:
        _put(env, name, None, f"{next(iter(source), 'valueFrom')} is not supported here; write a value")
        return
    reference, kind = source[source_field], SOURCES[source_field]
    data = objects.data(kind, str(reference["name"]))
    value = None if data is None else data.get(str(reference["key"]))
    if value is None and reference.get("optional"):
        return
    if data is None and (kind, reference["name"]) == ("Secret", service):
        env.secret.append((name, service, str(reference["key"])))
        return
    missing = f"{kind} {reference['name']}" if data is None else f"key {reference['key']} of {kind} {reference['name']}"
    _put(env, name, value, f"{missing} is not in the manifests; add it, or write a value")


def _from_source(source: Mapping[str, Json], objects: Objects, refused: list[str]) -> Iterator[tuple[str, str]]:
    source_field = "secretRef" if "secretRef" in source else "configMapRef"
    reference, kind = mapping_at(source, source_field), SOURCES[source_field]
    data = objects.data(kind, str(reference.get("name")))
    if data is None and not reference.get("optional"):
        refused.append(f"envFrom: {kind} {reference.get('name')} is not in the manifests; add it")
    for key, value in (data or {}).items():
        yield f"{source.get('prefix') or ''}{key}", value


def _mounts(pod: Mapping[str, Json], container: Mapping[str, Json], refused: list[str]) -> tuple[Mount, ...]:
    """Return the mounts of hostPaths; refuse any other volume but emptyDir."""
    mounts: list[Mount] = []
    volumes = {str(volume.get("name")): volume for volume in pod.get("volumes") or ()}
    for mount in container.get("volumeMounts") or ():
        volume, path = volumes.get(str(mount["name"]), {}), str(mount["mountPath"]).rstrip("/")
        if "hostPath" in volume:
            inside = str(mount.get("subPath") or "").strip("/")
            folder = str(volume["hostPath"]["path"]).rstrip("/")
            source = f"{folder}/{inside}" if inside else folder or "/"
            mounts.append(Mount(source, path, bool(mount.get("readOnly"))))
        elif "emptyDir" not in volume and path != names.ACCESS_DIR:
            refused.append(_refusal(str(mount["name"]), path, volume))
    return tuple(mounts)


def _refusal(name: str, path: str, volume: Mapping[str, Json]) -> str:
    kind = next((key for key in volume if key != "name"), "nothing")
    if kind in _FILES:
        return f"volume {name}: files of a {kind} are not supported; use env, or a hostPath"
    what = f"volume {name} at {path} is {_NAMES.get(kind, kind)}"
    fix = "use a local path, a hostPath or a URI such as s3://, or --target kubernetes"
    return f"{what}, which this machine does not have; {fix}"


def _fetches(
    template: Mapping[str, Json], key: Key, objects: Objects, before: bool, refused: list[str]
) -> tuple[Fetch, ...]:
    """Return each `python -m pilotlight_predictor fetch URI DIR`, `before` the start; refuse other init containers."""
    fetches: list[Fetch] = []
    for container in mapping_at(template, "spec").get("initContainers") or ():
        image, command = str(container.get("image")), [*(container.get("command") or ())]
        if not is_predictor_image(image) or command[-3:-2] != ["fetch"]:
            refused.append(f"init container {container.get('name')} ({image}): only the predictor is supported here")
            continue
        env = Variables()
        if before:  # else the predictor fetches, with variables of its own
            env = variables_of(container, mapping_at(template, "metadata"), key, objects)
            refused += env.refused
        fetches.append(Fetch(str(command[-2]), str(command[-1]).rstrip("/"), env.values, tuple(env.secret)))
    return tuple(fetches)


def map_path(text: str, paths: PathMap) -> str:
    """Replace a mapped path at the start of the text, or after `--option=` or `name=`."""
    option, sign, value = text.partition("=")
    if sign and (option.startswith("--") or value.startswith("/")):
        return f"{option}={map_path(value, paths)}"
    for path in sorted(paths, key=len, reverse=True):
        if text == path or text.startswith(f"{path}/"):
            return paths[path] + text[len(path) :]
    return text


def unused_fetches(fetches: Iterable[Fetch], texts: Sequence[str]) -> list[str]:
    """Return problems of fetched folders that no setting names: the predictor would not find the model."""
    return [
        f"{fetch.uri} is fetched into {fetch.folder}, which no variable refers to; use one storageUri"
        for fetch in fetches
        if fetch.folder not in texts
    ]


def _program(container: Mapping[str, Json], rules: PodRules) -> tuple[list[str], list[str]]:
    """Return command and args. A shell that only starts our predictor is left out where there is no container.

    Nothing else of a shell's text is accepted, so none is ever run. Without it `umask 0`, for files that containers
    share, has no effect.
    """
    command, args = ([str(word) for word in container.get(name) or ()] for name in ("command", "args"))
    if not rules.foreign_images and command[:2] == ["/bin/sh", "-c"] and len([*command, *args]) == 3:
        text = _SHELL.fullmatch(command[2])
        words = shlex.split(text[1]) if text else []
        if text and shlex.join(words) == text[1]:  # without operators and expansions
            return [], words
    return command, args


def _isolated(spec: ContainerSpec, written: Json, target: str, refused: list[str]) -> ContainerSpec:
    """Return the container with the isolation of its annotation; refuse one that would have no effect."""
    if not written:
        return spec
    problem = ""
    if written not in names.ISOLATIONS:
        problem = f"must be {' or '.join(names.ISOLATIONS)}"
    elif target != "local":
        problem = f"it isolates only processes of the target local, not of {target}; remove it"
    elif tuple(spec.command[1:3]) == PROGRAMS[1]:
        problem = "only predictors can be isolated, and this is a router; remove it"
    elif not is_predictor_image(spec.image):
        problem = "engines cannot be isolated, only the Pilotlight predictor; use --target docker"
    elif spec.host_port:
        problem = "other users of the machine must not reach it; remove hostPort"
    refused += [f"annotation {names.ANNOTATION_ISOLATION} = {written}: {problem}"] if problem else []
    return replace(spec, isolation=written)


def container_of(
    template: Mapping[str, Json], key: Key, objects: Objects, port: Json, refused: list[str]
) -> ContainerSpec:
    """Return the container; problems are added to `refused`. `port` is the Service's targetPort."""
    pod, annotations = mapping_at(template, "spec"), mapping_at(template, "metadata", "annotations")
    containers: list[dict[str, Json]] = list(pod.get("containers") or ({},))
    main, image = containers[0], str(containers[0].get("image") or "")
    problems: list[str] = []
    options = _options(annotations, problems)
    rules = rules_of(target_of(template), options, problems)
    problems += [
        f"container {other.get('name')} ({other.get('image')}): a replica is one {rules.replica} here; {ELSEWHERE}"
        for other in containers[1:]
    ]
    variables = variables_of(main, mapping_at(template, "metadata"), key, objects)
    words, paths = _program(main, rules), dict[str, str]()
    is_engine = rules.engines and not is_predictor_image(image) and engine_command(image, *words) is not None
    fetches = _fetches(template, key, objects, rules.mounts or is_engine, problems)
    mounts = _mounts(pod, main, problems)
    problems += variables.refused
    if not rules.mounts:
        paths, mounts = {each.path: each.source for each in mounts}, ()
    if not rules.mounts and not is_engine:
        paths |= {each.folder: each.uri for each in fetches}
        problems += unused_fetches(fetches, [*variables.values.values(), *words[1]])
        fetches = ()
    command, args = (tuple(map_path(expanded(word, variables.values), paths) for word in each) for each in words)
    serving = _number(port, main) or _number(at(main, "ports"), main) or HTTP_PORT
    spec = ContainerSpec(
        name=str(main.get("name") or "main"), image=image, command=command, args=args,
        env={name: map_path(value, paths) for name, value in variables.values.items() if name != ENV_ACCESS_FILE},
        port=serving, replica_env=tuple(variables.own_name), secret_env=tuple(variables.secret), mounts=mounts,
        fetches=fetches, pins=decode(str(annotations.get(names.ANNOTATION_PINS, ""))), options=options,
        pull_policy=str(main.get("imagePullPolicy") or ""),
        **_resources(mapping_at(main, "resources"), problems), **_host_port(main, serving, problems),
        **gpu_sharing(annotations),
    )  # fmt: skip
    spec = _isolated(spec, annotations.get(names.ANNOTATION_ISOLATION), target_of(template), problems)
    startup, readiness, liveness = (_probe(main, name, spec, problems) for name in PROBES)
    if not rules.foreign_images and not is_engine and command and tuple(command[1:3]) not in PROGRAMS:
        problems.append(f"command {' '.join(command)}: only the image's own programs are supported here; {ELSEWHERE}")
    # Where a foreign image cannot be run at all, its other problems are not listed.
    runs = rules.foreign_images or is_engine or is_predictor_image(image)
    refused += problems if runs else [f"image {image}: {rules.hint}"]
    return replace(spec, startup=startup, readiness=readiness, liveness=liveness)


def _number(port: Json, container: Mapping[str, Json]) -> int:
    """Return a port by number, by name, or the first of a list; 0: none."""
    ports = container.get("ports") or ()
    if isinstance(port, list | tuple):
        return int(port[0]["containerPort"]) if port else 0
    if isinstance(port, str) and not port.isdigit():
        return next((int(each["containerPort"]) for each in ports if each.get("name") == port), 0)
    return int(port or 0)


def _resources(resources: Mapping[str, Json], refused: list[str]) -> dict[str, Any]:
    limits, requests = mapping_at(resources, "limits"), mapping_at(resources, "requests")

    def amount(values: Mapping[str, Json], key: str) -> float | None:
        return quantity_of(str(values[key])) if values.get(key) is not None else None

    devices = sorted(name for name in {**limits, **requests} if name.startswith(_DEVICES))
    refused += [f"resource {name}: only whole NVIDIA GPUs ({GPU}) are assigned here; {ELSEWHERE}" for name in devices]
    memory, cpu = amount(limits, "memory"), amount(limits, "cpu")
    return {
        "gpus": int(amount(limits, GPU) or amount(requests, GPU) or 0),
        "cpu_request": amount(requests, "cpu") or cpu or 0.0,
        "cpu_limit": cpu,
        "memory_limit": int(memory) if memory else None,
    }


def _host_port(container: Mapping[str, Json], serving: int, refused: list[str]) -> dict[str, Any]:
    """Return hostPort and hostIP of the serving port."""
    ports: Iterable[Mapping[str, Json]] = container.get("ports") or ()
    written = next((each for each in ports if each.get("containerPort") == serving), {})
    host = str(written.get("hostIP") or "")
    try:
        ip_address(host or "::")
    except ValueError:
        refused.append(f"hostIP = {host!r}: must be an IP address, such as 127.0.0.1")
    return {"host_port": int(written.get("hostPort") or 0), "host_ip": host}


def _probe(container: Mapping[str, Json], name: str, spec: ContainerSpec, refused: list[str]) -> Probe | None:
    """Read a probe. Of our own servers gRPC and TCP become HTTP, which they always serve; of others they are TCP."""
    written = mapping_at(container, name)
    if not written:
        return None
    if "exec" in written:
        refused.append(f"{name}: exec probes are not supported here; use httpGet")
    http = mapping_at(written, "httpGet")
    port = _number(http.get("port"), container) or (HTTP_PORT if spec.port == GRPC_PORT else spec.port)
    path = str(http.get("path") or READY_PATH)
    kind: Literal["http", "tcp"] = "http"
    if not spec.own_health:
        other = http or mapping_at(written, "tcpSocket") or mapping_at(written, "grpc")
        port = _number(other.get("port"), container) or spec.port
        kind = "http" if http and http.get("scheme", "HTTP") == "HTTP" else "tcp"
        path = str(http.get("path") or "/") if kind == "http" else ""
    default = Probe("", 0)
    return Probe(
        path=path,
        port=port,
        period_s=float(written.get("periodSeconds") or default.period_s),
        timeout_s=float(written.get("timeoutSeconds") or default.timeout_s),
        failure_threshold=int(written.get("failureThreshold") or default.failure_threshold),
        success_threshold=int(written.get("successThreshold") or default.success_threshold),
        initial_delay_s=float(written.get("initialDelaySeconds") or 0),
        kind=kind,
    )
