"""Field types of a `serving.kserve.io/v1beta1` InferenceService, for the reader `kserve` and the JSON Schema."""

from functools import cache
from typing import Final

from pilotlight.spec import pod_fields
from pilotlight.spec.annotation_checks import POLICY
from pilotlight.spec.component_fields import EXTENSION, NAME, STORAGE, STORAGE_URI, document, inline_pod_fields
from pilotlight.spec.example_request import MODEL_FIELDS
from pilotlight.spec.field_types import (
    Boolean,
    Duration,
    Field,
    Integer,
    ListOf,
    ListOrMap,
    MapOf,
    OneOf,
    Quantity,
    Record,
    RecordRef,
    String,
)

GROUP: Final = "serving.kserve.io/v1beta1"
FRAMEWORKS: Final = (
    "sklearn", "xgboost", "tensorflow", "pytorch", "triton", "onnx", "huggingface", "pmml", "lightgbm", "paddle",
)  # fmt: skip
ART_TYPES: Final = ("SquareAttack",)
PROTOCOLS: Final = ("v1", "v2", "grpc-v1", "grpc-v2")
TARGET_TYPES: Final = ("Utilization", "AverageValue", "Value")
_RENAMED: Final = {
    "timeoutSeconds": "KServe's name is timeout",
    "replicas": "use minReplicas and maxReplicas",
    "storageUri": "put it under model",
    "modelFormat": "put it under model",
    "runtime": "put it under model",
    "runner": "that is an OME field; here the container's fields go under model, or under containers",
    "kedaConfig": "that is an OME field; here use autoScaling.metrics",
    "custom": "give its container under containers",
    "alibi": "KServe removed it; put the explainer's container under containers",
    "aix": "KServe removed it; put the explainer's container under containers",
    **dict.fromkeys(("image", "env", "args", "command"), "put it under model, or under containers"),
}


@cache
def record(name: str) -> Record:
    """Return a record of this group by name, built on first use."""
    return {
        "InferenceServiceSpec": _spec,
        "PredictorSpec": _predictor,
        "TransformerSpec": _transformer,
        "ExplainerSpec": _explainer,
        "CanarySpec": _canary,
        "ModelSpec": _model,
        "FrameworkSpec": _framework,
        "ARTExplainerSpec": _art,
        "WorkerSpec": _worker,
        "AutoScalingSpec": _auto_scaling,
        "MetricTarget": _target,
        "LoggerSpec": _logger,
        "StorageUri": _storage_uri,
    }[name](name)


def inference_service() -> Record:
    return document(GROUP, RecordRef("InferenceServiceSpec", record))


def _named(name: str) -> RecordRef:
    return RecordRef(name, record)


def _spec(name: str) -> Record:
    canaries = ListOrMap(ListOf(_named("CanarySpec")), POLICY)
    fields = {
        "predictor": Field(_named("PredictorSpec"), "Serves requests.", required=True),
        "transformer": Field(_named("TransformerSpec"), "Transforms requests and responses."),
        "explainer": Field(_named("ExplainerSpec"), "Explains predictions."),
        "canary": Field(canaries, "Other predictors that get part of the traffic."),
    }
    hints = dict.fromkeys(record("PredictorSpec").fields, "put it under predictor")
    hints["engine"] = "that is an OME field; here use predictor"
    return Record(name, fields, "Desired state of the service.", hints)


def _extension() -> dict[str, Field]:
    batcher = Record("Batcher", {
        "maxBatchSize": Field(Integer(1), "Maximum batch size."),
        "maxLatency": Field(Integer(0), "Maximum wait for a batch, in milliseconds."),
        "timeout": Field(Integer(0), "Timeout of a batch, in seconds."),
    })  # fmt: skip
    return {
        **EXTENSION,
        "timeout": Field(Integer(0), "Timeout of a request, in seconds."),
        "scaleMetricType": Field(OneOf(TARGET_TYPES), "Type of scaleTarget: a percentage or a value."),
        "autoScaling": Field(_named("AutoScalingSpec"), "Autoscaling by several metrics."),
        "logger": Field(_named("LoggerSpec"), "Sends requests and responses to another service."),
        "batcher": Field(batcher, "Groups requests into batches."),
        "storageUris": Field(ListOf(_named("StorageUri")), "Several artifacts, each with its mount path."),
    }


def _predictor(name: str) -> Record:
    own = {
        "name": Field(NAME, "Name of this variant; a canary needs one."),
        "model": Field(_named("ModelSpec"), "The model and its format."),
        **{each: Field(_named("FrameworkSpec"), f"A model of format {each}.") for each in FRAMEWORKS},
        "storageContainerName": Field(String(), "Which ClusterStorageContainer downloads the model."),
        "workerSpec": Field(_named("WorkerSpec"), "The other pods of a multi-node predictor."),
    }
    return Record(name, {**inline_pod_fields(), **_extension(), **own}, "Serves requests.", _RENAMED)


def _transformer(name: str) -> Record:
    return Record(name, {**inline_pod_fields(), **_extension()}, "Transforms requests and responses.", _RENAMED)


def _explainer(name: str) -> Record:
    own = {"art": Field(_named("ARTExplainerSpec"), "An explainer of the Adversarial Robustness Toolbox.")}
    return Record(name, {**inline_pod_fields(), **_extension(), **own}, "Explains predictions.", _RENAMED)


def _canary(name: str) -> Record:
    fields = {
        "predictor": Field(_named("PredictorSpec"), "The other predictor, with a name.", required=True),
        "trafficPercent": Field(Integer(0, 100), "Its traffic percentage.", required=True),
    }
    return Record(name, fields)


def _framework(name: str) -> Record:
    confidential = Record("ConfidentialSpec", {
        "enabled": Field(Boolean(), "Decrypt the model's files.", required=True),
        "resourceId": Field(String(), "Which key, as kbs:///repo/type/tag."),
    })  # fmt: skip
    fields = {
        **pod_fields.fields("Container", without=("name",)),
        "name": Field(String(), "No effect: the runtime names the container. Objects read from a cluster have it."),
        "storageUri": Field(STORAGE_URI, "URI of the model."),
        "storage": Field(STORAGE, "Where the model is, by the storage secret."),
        "runtimeVersion": Field(String(), "Version of the runtime's image."),
        "protocolVersion": Field(OneOf(PROTOCOLS), "Inference protocol."),
        "confidential": Field(confidential, "Encrypted model files."),
        **MODEL_FIELDS,
    }
    return Record(name, fields, "A model, and overrides of the container that serves it.")


def _model(name: str) -> Record:
    model_format = Record("ModelFormat", {
        "name": Field(String(r".+", "a format's name"), "sklearn, onnx, pytorch, triton, …", required=True),
        "version": Field(String(), 'Version of the format, in quotes: "1".'),
    })  # fmt: skip
    framework = _framework(name)
    own = {
        "modelFormat": Field(model_format, "The model's format.", required=True),
        "runtime": Field(String(), "Name of the runtime; selected by the format if unset."),
    }
    return Record(name, {**framework.fields, **own}, framework.description, framework.hints)


def _art(name: str) -> Record:
    fields = {
        **pod_fields.fields("Container", optional=("name",)),
        "type": Field(OneOf(ART_TYPES), "Kind of explanation."),
        "storageUri": Field(STORAGE_URI, "Where the explainer's model is."),
        "storage": Field(STORAGE, "Where the explainer's model is, by the storage secret."),
        "runtimeVersion": Field(String(), "Version of the explainer's image."),
        "config": Field(MapOf(String()), "Parameters of the explainer."),
    }
    return Record(name, fields)


def _worker(name: str) -> Record:
    own = {
        "pipelineParallelSize": Field(Integer(1), "Number of pods that share a model's layers, including the first."),
        "tensorParallelSize": Field(Integer(1), "GPUs per pod."),
    }
    return Record(name, {**inline_pod_fields(), **own}, "The other pods of a multi-node predictor.")


def _storage_uri(name: str) -> Record:
    path = String(r"/.{0,254}", "an absolute path")
    fields = {"uri": Field(STORAGE_URI, "Source URI.", required=True), "mountPath": Field(path, "Target path.")}
    return Record(name, fields)


def _logger(name: str) -> Record:
    storage = {name: known for name, known in STORAGE.fields.items() if name != "schemaPath"}
    storage["serviceAccountName"] = Field(String(), "Service account with write access.")
    fields = {
        "url": Field(String(r"\S+", "a URL"), "Destination of log records."),
        "mode": Field(OneOf(("all", "request", "response")), "What is logged: request, response or both."),
        "metadataHeaders": Field(ListOf(String()), "Request headers to pass on."),
        "metadataAnnotations": Field(ListOf(String()), "Annotations to pass on."),
        "storage": Field(Record("LoggerStorageSpec", storage), "Storage of log records."),
        "marshallerUrl": Field(String(), "Format of the files."),
        "batchSize": Field(Integer(1), "Records per file."),
        "batchInterval": Field(Duration(), "Maximum time before a file is written."),
    }
    return Record(name, fields, "Sends requests and responses to another service.")


def _target(name: str) -> Record:
    fields = {
        "type": Field(OneOf(TARGET_TYPES), "Type of the target."),
        "value": Field(Quantity(), "Target value."),
        "averageValue": Field(Quantity(), "Target value per replica."),
        "averageUtilization": Field(Integer(1), "Target percentage of the resource request."),
    }
    return Record(name, fields)


def _auto_scaling(name: str) -> Record:
    target = Field(_named("MetricTarget"), "Target of the metric.", required=True)
    resource = {"name": Field(OneOf(("cpu", "memory")), "The resource.", required=True), "target": target}
    external = {"metric": Field(_external(), "The query.", required=True), "target": target}
    reference = Record("AuthenticationRef", {"name": Field(String(), "A TriggerAuthentication.", required=True)})
    credentials = {
        "authenticationRef": Field(reference, "Where they are.", required=True),
        "authModes": Field(String(), "bearer, basic, tls."),
    }
    external["authenticationRef"] = Field(Record("ExtMetricAuthentication", credentials), "Credentials.")
    pod = {"metric": Field(_pod_metric(), "The metric.", required=True), "target": target}
    metric = Record("MetricsSpec", {
        "type": Field(OneOf(("Resource", "External", "PodMetric")), "Kind of metric.", required=True),
        "resource": Field(Record("ResourceMetricSource", resource), "With type Resource."),
        "external": Field(Record("ExternalMetricSource", external), "With type External."),
        "podmetric": Field(Record("PodMetricSource", pod), "With type PodMetric."),
    })  # fmt: skip
    fields = {
        "metrics": Field(ListOf(metric), "Metrics; the highest replica count wins."),
        "behavior": Field(pod_fields.core("HorizontalPodAutoscalerBehavior"), "How fast."),
    }
    return Record(name, fields)


def _external() -> Record:
    fields = {
        "backend": Field(OneOf(("prometheus", "graphite")), "Kind of server."),
        "serverAddress": Field(String(), "URL of the server."),
        "query": Field(String(), "Query."),
        "namespace": Field(String(), "Namespace of the query."),
    }
    return Record("ExternalMetrics", fields)


def _pod_metric() -> Record:
    operations = ("last_one", "avg", "max", "min", "rate", "count")
    fields = {
        "backend": Field(OneOf(("opentelemetry",)), "Kind of server."),
        "serverAddress": Field(String(), "Address of the scaler."),
        "metricNames": Field(ListOf(String()), "Names of the metrics."),
        "query": Field(String(), "Query."),
        "operationOverTime": Field(OneOf(operations), "Aggregation over time."),
    }
    return Record("PodMetrics", fields)
