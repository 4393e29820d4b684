"""Rules for a Knative Service: start, limits, reserved names and feature flags of its revisions, and its traffic."""

import re
from typing import Final

from pilotlight.k8s import quantities
from pilotlight.k8s.knative_features import POD_FLAGS, VOLUME_FLAGS
from pilotlight.lint.knative_scaling import annotation
from pilotlight.lint.object_accessors import containers, gpus, name, startup_budget
from pilotlight.lint.rule import Hits, LintContext, Part, rule

PROGRESS_DEADLINE: Final = "serving.knative.dev/progress-deadline"
DEFAULT_PROGRESS_DEADLINE: Final = 600.0
MAX_TIMEOUT: Final = 600
MAX_CONCURRENCY: Final = 1000
RESERVED_PORTS: Final = {8012, 8013, 8022, 9090, 9091, 8008}
RESERVED_VARIABLES: Final = {"PORT", "K_SERVICE", "K_CONFIGURATION", "K_REVISION"}
PORT_NAMES: Final = ("http1", "h2c")
LABEL: Final = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
LONGEST_LABEL: Final = 63

# Pod fields behind a flag of config-features; all are off by default.
POD_FEATURES: Final = dict(sorted(POD_FLAGS.items()))
VOLUME_FEATURES: Final = dict(sorted(VOLUME_FLAGS.items()))
REFUSED_POD_FIELDS: Final = (
    "activeDeadlineSeconds", "hostname", "nodeName", "priority", "readinessGates", "restartPolicy", "subdomain",
    "terminationGracePeriodSeconds",
)  # fmt: skip
REFUSED_CONTAINER_FIELDS: Final = ("lifecycle", "stdin", "stdinOnce", "tty", "volumeDevices")


def revision(service: Part) -> Part:
    return service.get("spec", "template", "spec")


@rule("PL462")
def short_deadline(service: Part, _: LintContext) -> Hits:
    setting = service.get("spec", "template", "metadata", "annotations", PROGRESS_DEADLINE)
    deadline = quantities.parse_duration(setting.text()) if setting else DEFAULT_PROGRESS_DEADLINE
    budget = startup_budget(service)
    if deadline is not None and deadline < budget:
        message = (
            f"the startup probe allows {budget:g} s, but the progress deadline is {deadline:g} s"
            f"{'' if setting else ' (the default)'}; set {PROGRESS_DEADLINE} above it"
        )
        yield setting or service.get("spec", "template"), message


@rule("PL463")
def slow_probe(service: Part, _: LintContext) -> Hits:
    for container in containers(service):
        period, startup = container.get("readinessProbe", "periodSeconds"), container.get("startupProbe")
        if period.integer(0) > 0:
            message = f"periodSeconds = {period.integer(0)} switches off Knative's probing every 50 ms; leave it out"
            yield period, message
        if startup:
            message = "the kubelet runs a startupProbe in whole seconds; leave it out and set the progress deadline"
            yield startup, message


@rule("PL464")
def long_timeout(service: Part, _: LintContext) -> Hits:
    timeout = revision(service).get("timeoutSeconds")
    if timeout and not 0 <= timeout.integer(-1) <= MAX_TIMEOUT:
        must = f"must be 0 to {MAX_TIMEOUT}, or up to the limit of config-defaults"
        yield timeout, f"timeoutSeconds = {timeout.text()}, {must}"


@rule("PL465")
def ports(service: Part, _: LintContext) -> Hits:
    serving = [container for container in containers(service) if any(container.get("ports").each())]
    for container in containers(service):
        declared = list(container.get("ports").each())
        for port in declared:
            if port.get("containerPort").integer(0) in RESERVED_PORTS:
                message = f"port {port.get('containerPort').text()} is reserved by Knative; use another, such as 8080"
                yield port.get("containerPort"), message
            if port.get("name") and port.get("name").text() not in PORT_NAMES:
                yield port.get("name"), f"port name = {port.get('name').text()}, must be http1 or h2c"
        if len(declared) > 1:
            message = f"{len(declared)} ports, but Knative takes one; keep the one that gets the traffic"
            yield container.get("ports"), message
    if len(serving) > 1:
        yield serving[1].get("ports"), "a second container has a port; keep the port of one"


@rule("PL466")
def variables(service: Part, _: LintContext) -> Hits:
    for container in containers(service):
        for variable in container.get("env").each():
            if variable.get("name").text() in RESERVED_VARIABLES:
                message = f"{variable.get('name').text()} is set by Knative and rejected in a template; delete it"
                yield variable.get("name"), message


@rule("PL467")
def container_name(service: Part, _: LintContext) -> Hits:
    for container in containers(service):
        if container.get("name").text() == "queue-proxy":
            yield container.get("name"), "queue-proxy is the name of Knative's sidecar; use another"


@rule("PL468")
def threshold_without_period(service: Part, _: LintContext) -> Hits:
    for container in containers(service):
        probe = container.get("readinessProbe")
        for key in ("failureThreshold", "timeoutSeconds"):
            if probe.get("periodSeconds").integer(0) == 0 and probe.get(key).integer(0) != 0:
                yield probe.get(key), f"{key} is rejected without periodSeconds; remove it"


@rule("PL469")
def concurrency(service: Part, _: LintContext) -> Hits:
    limit = revision(service).get("containerConcurrency")
    if limit and not 0 <= limit.integer(-1) <= MAX_CONCURRENCY:
        yield limit, f"containerConcurrency = {limit.text()}, must be 0 to {MAX_CONCURRENCY}"


@rule("PL470")
def features(service: Part, _: LintContext) -> Hits:
    pod = revision(service)
    for field, flag in POD_FEATURES.items():
        if pod.get(field):
            yield pod.get(field), f"{field} needs kubernetes.podspec-{flag}: enabled in config-features"
    for volume in pod.get("volumes").each():
        for field, flag in VOLUME_FEATURES.items():
            if volume.get(field):
                yield volume.get(field), f"{field} needs kubernetes.podspec-{flag}: enabled in config-features"
        claim = volume.get("persistentVolumeClaim")
        if claim and not claim.get("readOnly").boolean(default=False):
            yield claim, "a writable claim needs kubernetes.podspec-persistent-volume-write: enabled, or readOnly: true"
    for container in containers(service):
        for variable in container.get("env").each():
            if variable.get("valueFrom", "fieldRef") or variable.get("valueFrom", "resourceFieldRef"):
                message = "fieldRef needs kubernetes.podspec-fieldref: enabled in config-features"
                yield variable.get("valueFrom"), message


@rule("PL471")
def refused_field(service: Part, _: LintContext) -> Hits:
    for field in REFUSED_POD_FIELDS:
        if revision(service).get(field):
            yield revision(service).get(field), f"{field} is rejected in a Knative Service; delete it"
    for container in containers(service):
        for field in REFUSED_CONTAINER_FIELDS:
            if container.get(field):
                yield container.get(field), f"{field} is rejected in a Knative Service; delete it"


@rule("PL472")
def double_gpus(service: Part, _: LintContext) -> Hits:
    each = sum(gpus(container) for container in containers(service))
    least = annotation(service, "min-scale").integer(0)
    replicas, drain = max(least, 1), "" if least else "; scaled to zero, a pod holds them for the 30 s of its drain"
    if each:
        gpu_container = next(container for container in containers(service) if gpus(container))
        message = f"a rollout runs both revisions: {2 * each * replicas:g} GPUs instead of {each * replicas:g}{drain}"
        yield gpu_container.get("resources"), message


def traffic(service: Part) -> list[Part]:
    return list(service.get("spec", "traffic").each())


def revision_name(service: Part) -> Part:
    return service.get("spec", "template", "metadata", "name")


@rule("PL473")
def percentages(service: Part, _: LintContext) -> Hits:
    entries = traffic(service)
    total = sum(entry.get("percent").integer(0) for entry in entries)
    if entries and total != 100:
        yield service.get("spec", "traffic"), f"the percentages add up to {total}, must be 100"
    for entry in entries:
        if not 0 <= entry.get("percent").integer(0) <= 100:
            yield entry.get("percent"), f"percent = {entry.get('percent').text()}, must be 0 to 100"


@rule("PL474")
def unnamed_revision(service: Part, _: LintContext) -> Hits:
    latest = any(entry.get("latestRevision").boolean(default=False) for entry in traffic(service))
    for entry in traffic(service):
        if entry.get("revisionName") and not latest and not revision_name(service):
            pinned = f"{entry.get('revisionName').text()} is pinned, but the template has no metadata.name"
            yield entry.get("revisionName"), f"{pinned}: the template of this file gets no traffic; name the revision"


@rule("PL475")
def same_tag(service: Part, _: LintContext) -> Hits:
    seen: set[str] = set()
    for entry in traffic(service):
        tag = entry.get("tag").text()
        if tag and tag in seen:
            yield entry.get("tag"), f"the tag {tag} is used by an earlier entry; tags must be unique"
        seen.add(tag)


@rule("PL476")
def tag_label(service: Part, _: LintContext) -> Hits:
    for entry in traffic(service):
        tag = entry.get("tag")
        host = f"{tag.text()}-{name(service)}"
        if tag.text() and not LABEL.fullmatch(tag.text()):
            yield tag, f"tag = {tag.text()}, must be lower-case letters, digits and hyphens"
        elif tag.text() and len(host) > LONGEST_LABEL:
            yield tag, f"{host} has {len(host)} characters, at most {LONGEST_LABEL} fit a host name; shorten the tag"


@rule("PL477")
def revision_prefix(service: Part, _: LintContext) -> Hits:
    revision, prefix = revision_name(service), f"{name(service)}-"
    if revision and not revision.text().startswith(prefix):
        yield revision, f"template.metadata.name = {revision.text()}, must start with {prefix}"
    elif revision and (len(revision.text()) > LONGEST_LABEL or not LABEL.fullmatch(revision.text())):
        must = f"must be a DNS label of at most {LONGEST_LABEL} characters"
        yield revision, f"template.metadata.name = {revision.text()}, {must}"


@rule("PL478")
def contradiction(service: Part, _: LintContext) -> Hits:
    for entry in traffic(service):
        pinned, latest = entry.get("revisionName"), entry.get("latestRevision")
        if latest and bool(pinned.text()) == latest.boolean(default=False):
            message = f"latestRevision = {latest.text()} contradicts revisionName {pinned.text() or 'none'}; keep one"
            yield latest, message
        if entry.get("configurationName"):
            yield entry.get("configurationName"), "configurationName is rejected in a Service; delete it"
