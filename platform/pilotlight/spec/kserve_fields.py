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
    "runner": "that is OME's; here the container's fields go under model, or under containers",
    "kedaConfig": "that is OME's; here use autoScaling.metrics",
    "custom": "give its container under containers",
    "alibi": "KServe dropped it; give the explainer's container under containers",
    "aix": "KServe dropped it; give the explainer's container under containers",
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
        "predictor": Field(_named("PredictorSpec"), "What answers requests.", required=True),
        "transformer": Field(_named("TransformerSpec"), "What prepares requests and finishes responses."),
        "explainer": Field(_named("ExplainerSpec"), "What explains answers."),
        "canary": Field(canaries, "Other predictors that get a share of the requests."),
    }
    hints = dict.fromkeys(record("PredictorSpec").fields, "put it under predictor")
    hints["engine"] = "that is OME's; here use predictor"
    return Record(name, fields, "What to serve and how.", hints)


def _extension() -> dict[str, Field]:
    batcher = Record("Batcher", {
        "maxBatchSize": Field(Integer(1), "How many instances make a batch."),
        "maxLatency": Field(Integer(0), "How long a batch is gathered, in milliseconds."),
        "timeout": Field(Integer(0), "How long a batch may take, in seconds."),
    })  # fmt: skip
    return {
        **EXTENSION,
        "timeout": Field(Integer(0), "How long a request may take, in seconds."),
        "scaleMetricType": Field(OneOf(TARGET_TYPES), "What scaleTarget is: a percentage or a value."),
        "autoScaling": Field(_named("AutoScalingSpec"), "Scaling by several metrics."),
        "logger": Field(_named("LoggerSpec"), "Sends requests and responses to another service."),
        "batcher": Field(batcher, "Gathers requests into batches."),
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
    return Record(name, {**inline_pod_fields(), **_extension(), **own}, "What answers requests.", _RENAMED)


def _transformer(name: str) -> Record:
    return Record(
        name, {**inline_pod_fields(), **_extension()}, "What prepares requests and finishes responses.", _RENAMED
    )


def _explainer(name: str) -> Record:
    own = {"art": Field(_named("ARTExplainerSpec"), "An explainer of the Adversarial Robustness Toolbox.")}
    return Record(name, {**inline_pod_fields(), **_extension(), **own}, "What explains answers.", _RENAMED)


def _canary(name: str) -> Record:
    fields = {
        "predictor": Field(_named("PredictorSpec"), "The other predictor, with a name.", required=True),
        "trafficPercent": Field(Integer(0, 100), "Its share of the requests.", required=True),
    }
    return Record(name, fields)


def _framework(name: str) -> Record:
    confidential = Record("ConfidentialSpec", {
        "enabled": Field(Boolean(), "Decrypt the model's files.", required=True),
        "resourceId": Field(String(), "Which key, as kbs:///repo/type/tag."),
    })  # fmt: skip
    fields = {
        **pod_fields.fields("Container", without=("name",)),
        "name": Field(
            String(), "Without effect: the container's name is the runtime's. A cluster's own copies have it."
        ),
        "storageUri": Field(STORAGE_URI, "Where the model is."),
        "storage": Field(STORAGE, "Where the model is, by the storage secret."),
        "runtimeVersion": Field(String(), "Version of the runtime's image."),
        "protocolVersion": Field(OneOf(PROTOCOLS), "Dialect that is spoken."),
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
        "runtime": Field(String(), "Name of the runtime; chosen by the format when left out."),
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
        "pipelineParallelSize": Field(Integer(1), "How many pods share a model's layers, the first included."),
        "tensorParallelSize": Field(Integer(1), "How many GPUs each of them uses."),
    }
    return Record(name, {**inline_pod_fields(), **own}, "The other pods of a multi-node predictor.")


def _storage_uri(name: str) -> Record:
    path = String(r"/.{0,254}", "an absolute path")
    fields = {"uri": Field(STORAGE_URI, "Where it is.", required=True), "mountPath": Field(path, "Where it goes.")}
    return Record(name, fields)


def _logger(name: str) -> Record:
    storage = {name: known for name, known in STORAGE.fields.items() if name != "schemaPath"}
    storage["serviceAccountName"] = Field(String(), "Account that may write there.")
    fields = {
        "url": Field(String(r"\S+", "a URL"), "Where records are sent."),
        "mode": Field(OneOf(("all", "request", "response")), "What is recorded."),
        "metadataHeaders": Field(ListOf(String()), "Request headers to pass on."),
        "metadataAnnotations": Field(ListOf(String()), "Annotations to pass on."),
        "storage": Field(Record("LoggerStorageSpec", storage), "Where records are kept."),
        "marshallerUrl": Field(String(), "What turns records into files."),
        "batchSize": Field(Integer(1), "Records per file."),
        "batchInterval": Field(Duration(), "How long a file waits for records."),
    }
    return Record(name, fields, "Sends requests and responses to another service.")


def _target(name: str) -> Record:
    fields = {
        "type": Field(OneOf(TARGET_TYPES), "Which of the three is given."),
        "value": Field(Quantity(), "The value to hold."),
        "averageValue": Field(Quantity(), "The value per replica to hold."),
        "averageUtilization": Field(Integer(1), "The percentage of the request to hold."),
    }
    return Record(name, fields)


def _auto_scaling(name: str) -> Record:
    target = Field(_named("MetricTarget"), "What to hold.", required=True)
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
        "metrics": Field(ListOf(metric), "What is scaled by; the one that asks for most wins."),
        "behavior": Field(pod_fields.core("HorizontalPodAutoscalerBehavior"), "How fast."),
    }
    return Record(name, fields)


def _external() -> Record:
    fields = {
        "backend": Field(OneOf(("prometheus", "graphite")), "Kind of server."),
        "serverAddress": Field(String(), "URL of the server."),
        "query": Field(String(), "What to ask."),
        "namespace": Field(String(), "Namespace of the query."),
    }
    return Record("ExternalMetrics", fields)


def _pod_metric() -> Record:
    operations = ("last_one", "avg", "max", "min", "rate", "count")
    fields = {
        "backend": Field(OneOf(("opentelemetry",)), "Kind of server."),
        "serverAddress": Field(String(), "Address of the scaler."),
        "metricNames": Field(ListOf(String()), "Names of the metrics."),
        "query": Field(String(), "What to ask."),
        "operationOverTime": Field(OneOf(operations), "How values are gathered over time."),
    }
    return Record("PodMetrics", fields)
