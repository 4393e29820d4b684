"""Metadata keys of each trigger type in KEDA 2.21, and the keys that it has removed.

KEDA silently ignores unknown keys (unless its operator runs with KEDA_CHECK_UNEXPECTED_SCALERS_PARAMS). Types that are
not listed are not checked.
"""

from dataclasses import dataclass, field
from typing import Final

_AUTH: Final = frozenset({"authModes", "authMode", "apiKey", "method", "keyParamName"})


@dataclass(frozen=True, slots=True)
class TriggerType:
    """Keys of a trigger type. `open`: other keys are passed to an external scaler. `numbers`: numeric keys."""

    required: frozenset[str] = frozenset()
    optional: frozenset[str] = frozenset()
    removed: dict[str, str] = field(default_factory=dict)  # key → what to do instead
    numbers: frozenset[str] = frozenset()
    open: bool = False

    @property
    def known(self) -> frozenset[str]:
        return self.required | self.optional


def _type(required: str, optional: str = "", numbers: str = "", **others: object) -> TriggerType:
    parts = (frozenset(words.split()) for words in (required, optional, numbers))
    needed, allowed, numeric = parts
    return TriggerType(needed, allowed, numbers=numeric, **others)  # type: ignore[arg-type]


_METRIC_NAME: Final = {"metricName": "delete it: KEDA names the metric itself since 2.12"}
_RESOURCE: Final = _type(
    "value",
    "containerName",
    removed={"type": "move it to the trigger's metricType: metadata.type is an error since 2.18"},
)
_EXTERNAL: Final = _type("scalerAddress", "enableTLS unsafeSsl", open=True)

TYPES: Final[dict[str, TriggerType]] = {
    "cpu": _RESOURCE,
    "memory": _RESOURCE,
    "cron": _type("start end timezone desiredReplicas", numbers="desiredReplicas"),
    "external": _EXTERNAL,
    "external-push": _EXTERNAL,
    "kafka": _type(
        "",
        "bootstrapServers bootstrapServersFromEnv consumerGroup consumerGroupFromEnv topic topicFromEnv"
        " partitionLimitation lagThreshold activationLagThreshold offsetResetPolicy allowIdleConsumers"
        " excludePersistentLag scaleToZeroOnInvalidOffset limitToPartitionsWithLag"
        " ensureEvenDistributionOfPartitions fullMetadata version tls unsafeSsl sasl saslTokenProvider awsRegion",
        numbers="lagThreshold activationLagThreshold",
        removed=_METRIC_NAME,
    ),
    "kubernetes-workload": _type("podSelector value", "activationValue groupByNode", "value activationValue"),
    "metrics-api": _type(
        "url valueLocation",
        "targetValue activationTargetValue format unsafeSsl aggregateFromKubeServiceEndpoints aggregationType timeout "
        + " ".join(_AUTH),
        "targetValue activationTargetValue",
        removed=_METRIC_NAME,
    ),
    "prometheus": _type(
        "serverAddress query threshold",
        "activationThreshold namespace customHeaders queryParameters ignoreNullValues unsafeSsl timeout awsRegion"
        " identityOwner awsAccessKeyID awsAccessKeyIDFromEnv awsSecretAccessKeyFromEnv credentials credentialsFromEnv"
        " credentialsFromEnvFile cloud azureManagedPrometheusResourceURL " + " ".join(_AUTH),
        "threshold activationThreshold",
        removed={
            **_METRIC_NAME,
            "cortexOrgID": "write customHeaders: X-Scope-OrgID=…: it was removed in 2.12",
        },
    ),
    "rabbitmq": _type(
        "queueName",
        "mode queueLength value activationValue host hostFromEnv usernameFromEnv passwordFromEnv protocol vhostName"
        " useRegex excludeUnacknowledged pageSize operation timeout unsafeSsl " + " ".join(_AUTH),
        "value activationValue queueLength",
        removed=_METRIC_NAME,
    ),
}  # fmt: skip
