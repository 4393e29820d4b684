"""checkov and kube-score over manifests; `EXCEPTIONS` has what is not followed, each with its reason.

kube-score is built from its Go module, checkov installed from its lock file, each once into the judges' cache.
"""

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.judges.gomodules import Unavailable, cache_root, made_once, program, say

KUBE_SCORE: Final = ("github.com/zegl/kube-score/cmd/kube-score", "v1.20.0")
LOCK: Final = Path(__file__).parents[2] / "requirements/checkov.txt"
OK: Final = 10  # kube-score's best grade
INSTALL_SECONDS: Final = 600
CHECK_SECONDS: Final = 300


class Finding(NamedTuple):
    check: str
    object: str  # Kind/name

    def __str__(self) -> str:
        return f"{self.check} {self.object}"


class Exempt(NamedTuple):
    """A check that is not followed for objects by pattern."""

    check: str
    objects: str
    reason: str


_REPLICAS: Final = (
    "how many run is the document's choice: one where a short gap does no harm, and zero is what this is for"
)
_LIMITS: Final = (
    "a limit would throttle a server that needs all cores for a moment; the request is what a node reserves"
)
_PULL: Final = (
    "a tag of a release does not move; Always would ask a registry at each start, which is part of a cold start"
)
_DIGEST: Final = "a digest is known once an image is pushed; documents and the chart's values take image@sha256:…"
_ROOT: Final = (
    "an image of others may start as root and write to its own folders; --pod-security restricted forces more"
)
_SPREAD: Final = (
    "one node with a GPU may be all there is; topologySpreadConstraints spread replicas where there are more"
)
_EGRESS: Final = "a server fetches its model from where the document says, which a policy by address cannot tell"
_SCRATCH: Final = "scratch is as large as the model; a guess would evict the pod"
_MEMORY: Final = "an engine of others holds weights of a size that only its operator knows; a guess would kill it"
_PROBES: Final = (
    "liveness waits for a minute of failures, readiness for seconds; an image of others has one health path"
)
_MADE: Final = "pods of Knative or a LeaderWorkerSet, which do without the objects that stand beside a Deployment"
_WORKER: Final = "a worker of a LeaderWorkerSet takes no requests and ends with its leader, which has the probes"
_HOOK: Final = "a pod of `helm test`, which asks once and ends"
_OPEN: Final = "open to everybody, as its document has no access rules; with them it gets a policy"
_ONE: Final = "one process writes its volume, so the old one ends first"
_LEASE: Final = "one process leads by a Lease, so the old one gives it up first"
_FOREIGN_LIVENESS: Final = "whether an image of others hangs, nobody but its document can tell; readiness is asked"
_CONTAINERS: Final = "every container has a context of its own; Knative wants a flag for that of a pod"

FOREIGN: Final = (
    "Deployment/deepseek-split-decoder", "Deployment/deepseek-split-engine", "Deployment/flowers-sklearn-predictor",
    "Deployment/llama-chat-engine", "Deployment/deepseek-chat-engine-*-pods",
)  # fmt: skip
WITHOUT_LIVENESS: Final = ("flowers-sklearn-predictor", "*-leader-pods", "*-engine", "*-decoder")
EXCEPTIONS: Final = (
    Exempt("container-ephemeral-storage-request-and-limit/Ephemeral Storage limit is not set", "*", _SCRATCH),
    Exempt("container-ephemeral-storage-request-and-limit/Ephemeral Storage request is not set", "*", _SCRATCH),
    Exempt("container-image-pull-policy/ImagePullPolicy is not set to Always", "*", _PULL),
    Exempt("container-resources/CPU limit is not set", "*", _LIMITS),
    *(
        Exempt(check, name, _MEMORY)
        for check in ("container-resources/Memory limit is not set", "CKV_K8S_13")
        for name in FOREIGN
        if "sklearn" not in name
    ),
    *(
        Exempt(check, name, _ROOT)
        for check in (
            "container-security-context-readonlyrootfilesystem/The pod has a container with a writable root filesystem",
            "container-security-context-user-group-id/The container is running with a low user ID",
            "container-security-context-user-group-id/The container running with a low group ID",
            "CKV_K8S_22",
            "CKV_K8S_40",
        )
        for name in FOREIGN
    ),
    *(
        Exempt(check, name, _ROOT)
        for check in ("CKV_K8S_23", "CKV_K8S_37")
        for name in FOREIGN
        if "sklearn" not in name
    ),
    Exempt("deployment-has-host-podantiaffinity/Deployment does not have a host podAntiAffinity set", "*", _SPREAD),
    Exempt("statefulset-has-host-podantiaffinity/StatefulSet does not have a host podAntiAffinity set", "*", _SPREAD),
    Exempt("deployment-has-poddisruptionbudget/No matching PodDisruptionBudget was found", "Deployment/*-pods", _MADE),
    Exempt("deployment-replicas/Deployment few replicas", "*", _REPLICAS),
    Exempt("deployment-strategy/Deployment update strategy", "Deployment/pilotlight-api", _ONE),
    Exempt("deployment-strategy/Deployment update strategy", "Deployment/pilotlight-controller", _LEASE),
    Exempt(
        "horizontalpodautoscaler-has-target/The HPA target does not match anything", "*/deepseek-chat-engine", _MADE
    ),
    Exempt("horizontalpodautoscaler-replicas/HPA few replicas", "*", _REPLICAS),
    *(
        Exempt(check, name, reason)
        for check, kind in (
            ("pod-networkpolicy/The pod does not have a matching NetworkPolicy", "*"),
            ("CKV2_K8S_6", "Pod"),
        )
        for name, reason in (
            (f"{kind}/*pilotlight-gateway-test", _HOOK),
            (f"{kind}/detector-engine", _OPEN),
            (f"{kind}/deepseek-chat-engine-*-pods", _OPEN),
            (f"{kind}/*iris-predictor-*", _OPEN),
        )
    ),
    Exempt("pod-networkpolicy/The pod does not have a matching egress NetworkPolicy", "*", _EGRESS),
    Exempt("pod-probes-identical/Container has the same readiness and liveness probe", "*", _PROBES),
    *(
        Exempt("pod-probes/Container is missing a livenessProbe", f"Deployment/{name}", _FOREIGN_LIVENESS)
        for name in WITHOUT_LIVENESS
    ),
    Exempt("pod-probes/Container is missing a readinessProbe", "Deployment/*-worker-pods", _WORKER),
    Exempt("service-targets-pod/The services selector does not match any pods", "Service/deepseek-chat*", _MADE),
    *(Exempt("CKV_K8S_8", f"Deployment/{name}", _FOREIGN_LIVENESS) for name in WITHOUT_LIVENESS),
    Exempt("CKV_K8S_8", "Deployment/*-worker-pods", _WORKER),
    Exempt("CKV_K8S_9", "Deployment/*-worker-pods", _WORKER),
    Exempt("CKV_K8S_8", "Pod/pilotlight-gateway-test", _HOOK),
    Exempt("CKV_K8S_9", "Pod/pilotlight-gateway-test", _HOOK),
    Exempt("CKV_K8S_11", "*", _LIMITS),
    Exempt("CKV_K8S_15", "*", _PULL),
    Exempt("CKV_K8S_21", "*", "examples name no namespace, so that they run in any"),
    *(Exempt("CKV_K8S_29", name, _CONTAINERS) for name in (*FOREIGN, "Deployment/*-pods")),
    Exempt("CKV_K8S_35", "Deployment/pilotlight-api", "a case of the chart's tests gives a variable from a Secret"),
    Exempt("CKV_K8S_38", "Deployment/pilotlight-*", "both work with the API server"),
    *(Exempt("CKV_K8S_38", name, "its ServiceAccount, rendered beside it, mounts no token") for name in FOREIGN),
    Exempt("CKV_K8S_43", "*", _DIGEST),
)


def unexplained(findings: Iterable[Finding], exceptions: Iterable[Exempt]) -> list[Finding]:
    """Findings that no exception covers."""
    listed = list(exceptions)
    return sorted(
        {
            found
            for found in findings
            if not any(each.check == found.check and fnmatchcase(found.object, each.objects) for each in listed)
        }
    )


def unused(findings: Iterable[Finding], exceptions: Iterable[Exempt]) -> list[Exempt]:
    """Exceptions that no finding needs any more."""
    found = list(findings)
    return [
        each
        for each in exceptions
        if not any(each.check == one.check and fnmatchcase(one.object, each.objects) for one in found)
    ]


def with_pods_visible(manifests: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Manifests in which pods of Knative Services and LeaderWorkerSets are also Deployments, which both judges know."""
    listed = list(manifests)
    return [*listed, *(copy for each in listed for copy in _as_deployments(each))]


def _as_deployments(manifest: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    spec, metadata = manifest.get("spec") or {}, manifest["metadata"]
    templates = {}
    if str(manifest["apiVersion"]).startswith("serving.knative.dev") and manifest["kind"] == "Service":
        templates = {"-pods": spec["template"]}
    elif manifest["kind"] == "LeaderWorkerSet":
        both = spec["leaderWorkerTemplate"]
        templates = {"-leader-pods": both.get("leaderTemplate"), "-worker-pods": both["workerTemplate"]}
    for suffix, template in templates.items():
        if template:
            labels = template["metadata"]["labels"]
            yield {
                "apiVersion": "apps/v1", "kind": "Deployment",
                "metadata": {**metadata, "name": f"{metadata['name']}{suffix}"},
                "spec": {"selector": {"matchLabels": labels}, "template": template},
            }  # fmt: skip


def kube_score(files: Iterable[Path]) -> list[Finding]:
    """Every check of kube-score that is not fully met."""
    command = [program(*KUBE_SCORE), "score", "--kubernetes-version", "v1.34", "--output-format", "json"]
    objects = json.loads(_run([*command, *map(str, files)]))
    return [
        Finding(
            f"{check['check']['id']}/{comment['summary']}", f"{each['type_meta']['kind']}/{each['object_meta']['name']}"
        )
        for each in objects
        for check in each["checks"] or ()
        if check["grade"] < OK and not check.get("skipped")
        for comment in check["comments"]
    ]


def checkov(folder: Path) -> list[Finding]:
    """Every failed check of checkov over the files of a folder; it asks nobody for policies."""
    words = ["--framework", "kubernetes", "--directory", str(folder), "--output", "json", "--quiet", "--skip-download"]
    report = json.loads(_run([_checkov(), *words]))
    return [
        Finding(each["check_id"], "/".join(each["resource"].split(".")[:3:2]))  # Kind.namespace.name
        for each in report["results"]["failed_checks"]
    ]


@cache
def _checkov() -> str:
    folder = cache_root() / f"checkov-{sha256(LOCK.read_bytes()).hexdigest()[:12]}"
    if not folder.is_dir():
        with made_once(folder) as filling:
            if filling is not None:
                say("installing checkov; once, in about a minute")
                _install(filling)
    return str(folder / "bin/checkov")


def _install(folder: Path) -> None:
    """By uv, into an environment that may be moved: the finished folder gets another name."""
    uv = Path(sys.executable).with_name("uv")
    steps = (
        ["venv", "--quiet", "--relocatable", "--clear", "--python", sys.executable, str(folder)],
        ["pip", "install", "--quiet", "--python", str(folder), "--require-hashes", "-r", str(LOCK)],
    )
    for words in steps:
        done = subprocess.run([uv, *words], capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
        if done.returncode:
            raise Unavailable(f"checkov cannot be installed: {done.stderr.strip()[-300:]}")


def _run(command: list[str]) -> str:
    """What a judge writes; its exit status tells of findings as well as of failures."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=CHECK_SECONDS, check=False)
    if not done.stdout.lstrip().startswith(("[", "{")):
        raise AssertionError(f"{command[0]}: {done.stderr.strip()[-500:]}")
    return done.stdout
