"""Generator of data/core_fields.json: fields and types of the pod spec, from the models of Kubernetes' Python client.

Run `python -m schemas.generate_pod_fields` (extra `kubernetes`) when the pinned Kubernetes changes; a test
compares the file with its output. Nothing else imports it.
"""

import inspect
import json
import re
from pathlib import Path
from typing import Any, Final

# A type is written as text: `string`, `bool`, `int`, `int 1..65535`, `quantity`, `int-or-string`, `any`, `A|B` for a
# choice, `[T]` for a list, `{T}` for a map; any other word names a record. A field that ends in `!` is required.
TARGET: Final = Path(__file__).parents[1] / "platform" / "pilotlight" / "spec" / "data" / "core_fields.json"
ROOTS: Final = ("V1PodSpec", "V1DeploymentStrategy", "V2HorizontalPodAutoscalerBehavior")
_PLAIN: Final = {
    "str": "string", "bool": "bool", "int": "int", "float": "number", "datetime": "string", "object": "any",
}  # fmt: skip
_OPERATORS: Final = "In|NotIn|Exists|DoesNotExist"

# Types that the client's models leave open: quantities and ports are text or `object` there, enums are prose.
NARROWED: Final = {
    "Container.imagePullPolicy": "Always|IfNotPresent|Never",
    "Container.terminationMessagePolicy": "File|FallbackToLogsOnError",
    "ContainerPort.containerPort": "int 1..65535",
    "ContainerPort.hostPort": "int 1..65535",
    "ContainerPort.protocol": "TCP|UDP|SCTP",
    "DeploymentStrategy.type": "RollingUpdate|Recreate",
    "EmptyDirVolumeSource.sizeLimit": "quantity",
    "GRPCAction.port": "int 1..65535",
    "HPAScalingPolicy.periodSeconds": "int 1..1800",
    "HPAScalingPolicy.type": "Pods|Percent",
    "HPAScalingPolicy.value": "int 1..",
    "HPAScalingRules.selectPolicy": "Max|Min|Disabled",
    "HPAScalingRules.stabilizationWindowSeconds": "int 0..3600",
    "HPAScalingRules.tolerance": "quantity",
    "HTTPGetAction.port": "int-or-string",
    "HTTPGetAction.scheme": "HTTP|HTTPS",
    "LabelSelectorRequirement.operator": _OPERATORS,
    "NodeSelectorRequirement.operator": f"{_OPERATORS}|Gt|Lt",
    "ObjectMeta.managedFields": "any",
    "PodSpec.dnsPolicy": "ClusterFirst|ClusterFirstWithHostNet|Default|None",
    "PodSpec.overhead": "{quantity}",
    "PodSpec.preemptionPolicy": "PreemptLowerPriority|Never",
    "PodSpec.restartPolicy": "Always|OnFailure|Never",
    "Probe.failureThreshold": "int 1..",
    "Probe.initialDelaySeconds": "int 0..",
    "Probe.periodSeconds": "int 1..",
    "Probe.successThreshold": "int 1..",
    "Probe.timeoutSeconds": "int 1..",
    "ResourceFieldSelector.divisor": "quantity",
    "ResourceRequirements.limits": "{quantity}",
    "ResourceRequirements.requests": "{quantity}",
    "RollingUpdateDeployment.maxSurge": "int-or-string",
    "RollingUpdateDeployment.maxUnavailable": "int-or-string",
    "SeccompProfile.type": "RuntimeDefault|Localhost|Unconfined",
    "TCPSocketAction.port": "int-or-string",
    "Toleration.effect": "NoSchedule|PreferNoSchedule|NoExecute",
    "Toleration.operator": "Exists|Equal",
    "TopologySpreadConstraint.whenUnsatisfiable": "DoNotSchedule|ScheduleAnyway",
    "VolumeMount.mountPropagation": "None|HostToContainer|Bidirectional",
    "VolumeResourceRequirements.limits": "{quantity}",
    "VolumeResourceRequirements.requests": "{quantity}",
}
# A probe without a port means the serving port: Knative allows it, and so do KServe's documents.
OPTIONAL: Final = frozenset({"HTTPGetAction.port", "TCPSocketAction.port"})


def generate() -> dict[str, dict[str, str]]:
    """Return every record that the roots reach, by name, with its fields in order."""
    from kubernetes.client import models

    records: dict[str, dict[str, str]] = {}
    queue = list(ROOTS)
    while queue:
        model = queue.pop()
        if (name := _record_name(model)) in records:
            continue
        fields = _fields(name, getattr(models, model))
        narrowed = {field: NARROWED.get(f"{name}.{field.rstrip('!')}") for field in fields}
        records[name] = {field: narrowed[field] or text for field, (text, _) in fields.items()}
        queue += [inner for field, (_, inner) in fields.items() if inner and not narrowed[field]]
    return dict(sorted(records.items()))


def _fields(record: str, model: Any) -> dict[str, tuple[str, str]]:
    """Return field name → (type as text, the model inside it or "")."""
    fields = {}
    for attribute, name in sorted(model.attribute_map.items(), key=lambda item: item[1]):
        setter = inspect.getsource(getattr(model, attribute).fset)
        required = "!" if "must not be `None`" in setter and f"{record}.{name}" not in OPTIONAL else ""
        fields[name + required] = _type(model.openapi_types[attribute])
    return fields


def _type(openapi_type: str) -> tuple[str, str]:
    if match := re.fullmatch(r"list\[(.+)\]", openapi_type):
        text, inner = _type(match[1])
        return f"[{text}]", inner
    if match := re.fullmatch(r"dict\(str, (.+)\)", openapi_type):
        text, inner = _type(match[1])
        return f"{{{text}}}", inner
    return (_PLAIN[openapi_type], "") if openapi_type in _PLAIN else (_record_name(openapi_type), openapi_type)


def _record_name(model: str) -> str:
    return re.sub(r"^(?:CoreV1|V1|V2)", "", model)


def as_text(records: dict[str, dict[str, str]], version: str) -> str:
    """Format with one record per line, so that versions of Kubernetes can be diffed."""
    lines = [f"  {json.dumps(name)}: {json.dumps(fields)}" for name, fields in records.items()]
    return f'{{"client": "{version}", "records": {{\n' + ",\n".join(lines) + "\n}}\n"


def main() -> None:
    import kubernetes

    TARGET.write_text(as_text(generate(), kubernetes.__version__))


if __name__ == "__main__":
    main()
