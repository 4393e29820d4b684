"""Delivery of the model to the container, as volumes, mounts, variables and init containers for pods.py.

Our predictor fetches in its own process, so that download, imports and loading overlap. Foreign servers get an init
container with our `fetch`, unless the model can be mounted: a claim, an OCI image, a directory of OME's model agent, a
LocalModelCache of KServe. On a cluster, `pilotlight.dev/model-cache` replaces the pod's own cache.
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pilotlight.catalogue.model_documents import ModelCache, matching_cache
from pilotlight.contract import ENV_CACHE_DIR, ENV_MODEL_PATH
from pilotlight.k8s import names
from pilotlight.k8s.model_pins import REMOTE_SCHEMES, is_local, local_path
from pilotlight.plan import document_annotations, model_pins
from pilotlight.plan.component_context import PlanContext, written_containers
from pilotlight.plan.types import ADAPTERS_DIR, DecisionLog
from pilotlight.spec.service import BaseModel
from pilotlight.wire.environments.requirements import CODE, FILE, LOCK
from pilotlight.wire.model_formats import find_format

Json = Any
Object = dict[str, Json]
MODEL_DIR: Final = "/mnt/models"
FILE_SUFFIXES: Final = (".gguf",)  # of models whose engine wants the path of the file
CACHE_DIR: Final = "/var/cache/pilotlight"
VOLUME: Final = "model"
_ORACLE: Final = re.compile(r"oci://n/[^/]+/b/[^/]+/o/")
_FETCHED: Final = (*REMOTE_SCHEMES, "storage-config")
_SHARED_CACHE: Final = re.compile(
    r"(?!.*/\.\.(?:/|$)|hostPath:[/.]*$)"  # nothing above, and not the root of the node
    r"(?:pvc://(?P<claim>[a-z0-9]([a-z0-9.-]*[a-z0-9])?)(?P<folder>(/[\w.-]+)*)"
    r"|hostPath:(?P<path>/[\w./-]+))"
)
CACHE_VOLUME: Final = "model-cache"
CONFIGURED: Final = "storage-config://"  # bucket and credentials from an entry of KServe's Secret


@dataclass(frozen=True, slots=True)
class ModelStorage:
    """Pod parts that make the model available to the main container under `path`."""

    path: str = ""
    env: tuple[Object, ...] = ()
    volumes: tuple[Object, ...] = ()
    mounts: tuple[Object, ...] = ()
    init_containers: tuple[Object, ...] = ()
    node_selector: Mapping[str, str] = field(default_factory=dict)


def decide_storage(context: PlanContext, log: DecisionLog) -> ModelStorage:
    is_explainer = context.component.role == "explainer" and context.component.model is not None
    if not (context.serves_model or is_explainer) or context.choice.gateway:
        return ModelStorage()
    if context.component.storage_uris:
        log.decide(context.component.role, "storage", "init container each", "storageUris lists several sources")
        return _several(context)
    uri, _ = location(context)
    method, reason = _choose_method(context, uri, log)
    if method is None:
        return ModelStorage()
    log.decide(context.component.role, "storage", method.__name__.strip("_").replace("_", " "), reason)
    _check_shared_cache(context, method, log)
    _check_requirements(context, log)
    return _with_adapters(context, method(context, uri), log)


def _with_adapters(context: PlanContext, storage: ModelStorage, log: DecisionLog) -> ModelStorage:
    """Add the adapters: a claim or a local path is mounted, anything else fetched before the engine starts."""
    choice = context.choice
    volumes, mounts, fetches = list(storage.volumes), list(storage.mounts), list(storage.init_containers)
    for index, adapter in enumerate(() if choice.dynamic_adapters else choice.adapters):
        suffix, folder = f"-{index}" if index else "", f"{ADAPTERS_DIR}/{adapter.name}"
        name = f"adapter{suffix}"
        volume, mount = _claim(name, adapter.uri, folder)
        if is_local(adapter.uri):
            if not adapter.path.startswith(folder):
                continue  # our predictor reads it in place
            if context.capabilities.is_cluster:
                message = f"{adapter.uri}: a local path does not exist in a third-party image; use a URI or pvc://"
                log.error("PL342", adapter.named_at, message)
            volume = {"name": name, "hostPath": {"path": local_path(adapter.uri)}}
            mount = {"name": name, "mountPath": adapter.path, "readOnly": True}
        elif not adapter.uri.startswith("pvc://"):
            _check_scheme(adapter.uri, adapter.named_at, log)
            volume, mount, fetch = _fetched(name, f"adapter-initializer{suffix}", context, adapter.uri, folder)
            fetches.append(fetch)
        volumes.append(volume)
        mounts.append(mount)
    return replace(storage, volumes=tuple(volumes), mounts=tuple(mounts), init_containers=tuple(fetches))


def model_uris(context: PlanContext) -> tuple[str, ...]:
    """Return the URIs that the component loads; none if it follows a repository that changes under it."""
    is_explainer = context.component.role == "explainer" and context.component.model is not None
    if not (context.serves_model or is_explainer) or context.choice.gateway or model_pins.follows_repository(context):
        return ()
    uri, _ = location(context)
    cache = _local_cache(context, uri)
    uris = [entry["uri"] for entry in context.component.storage_uris] or [cache.claim if cache is not None else uri]
    adapters = () if context.choice.dynamic_adapters else (each.uri for each in context.choice.adapters)
    return tuple(dict.fromkeys(uri for uri in (*uris, *adapters) if uri))


def location(context: PlanContext) -> tuple[str, str]:
    """Return the model's URI and its path in the document: model, component, or a custom container's variable."""
    component, model = context.component, context.choice.model
    if component.model is not None and component.model.storage_uri:
        return component.model.storage_uri, context.path("model.storageUri")
    for variable in context.choice.container.get("env") or ():
        if variable.get("name") == "STORAGE_URI":
            return str(variable.get("value", "")), context.path("containers")
    storage = component.model.storage if component.model is not None else {}
    if storage.get("key"):
        return f"{CONFIGURED}{str(storage.get('path', '')).lstrip('/')}", context.path("model.storage")
    if model is not None and (model.storage_uri or model.storage):
        return model.storage_uri or _from_parameters(model.storage), "spec.model.name"
    return _from_parameters(storage), context.path("model.storage")


def _from_parameters(storage: Mapping[str, Json]) -> str:
    """Return KServe's `storage: {path, parameters: {type: s3, bucket: …}}` as a URI."""
    parameters = storage.get("parameters") or {}
    scheme, bucket = str(parameters.get("type", "")), str(parameters.get("bucket", ""))
    path = str(storage.get("path", "")).lstrip("/")
    return f"{scheme}://{bucket}/{path}" if scheme and bucket else ""


StorageMethod = Callable[[PlanContext, str], ModelStorage]


def _choose_method(context: PlanContext, uri: str, log: DecisionLog) -> tuple[StorageMethod | None, str]:
    """Return the storage method and its reason, in order: mounted, on the node, fetched. None if there is no model."""
    ours = context.choice.is_pilotlight
    scheme = uri.partition("://")[0] if "://" in uri else ""
    if (cache := _local_cache(context, uri)) is not None:
        return _local_model_cache, f"{cache.name} has it on nodes: claim {cache.claim}, created by KServe"
    if scheme == "pvc":
        return _volume_claim, "pvc:// names a claim"
    if scheme in ("oci", "oci+native") and not _ORACLE.match(uri):
        return _image_volume, "oci:// names an image, which the kubelet pulls and caches"
    if context.on_node and not (ours and scheme in _FETCHED):
        return _node_directory, "the BaseModel has storage.path: OME's model agent puts it on the node"
    if not uri:
        return None, ""
    if not scheme or scheme in ("file", "local"):
        return _local(context, uri, log)
    if not _check_scheme(uri, location(context)[1], log):
        return None, ""
    if ours:
        return _in_process, "the predictor downloads it during its imports"
    return _init_container, "a third-party image cannot download it; an init container does"


def _local_cache(context: PlanContext, uri: str) -> ModelCache | None:
    return matching_cache(uri, context.service, context.choice.caches) if context.capabilities.is_cluster else None


def _local_model_cache(context: PlanContext, uri: str) -> ModelStorage:
    cache = _local_cache(context, uri)
    assert cache is not None
    return _volume_claim(context, cache.claim)


def _check_shared_cache(context: PlanContext, method: StorageMethod, log: DecisionLog) -> None:
    written = context.service.annotations.get(names.ANNOTATION_MODEL_CACHE, "")
    path = f"metadata.annotations.{names.ANNOTATION_MODEL_CACHE}"
    if written and not _SHARED_CACHE.fullmatch(written):
        log.error("PL386", path, f"= {written}, must be pvc://CLAIM, pvc://CLAIM/folder or hostPath:/path")
    elif written and (method not in (_in_process, _init_container) or not context.capabilities.is_cluster):
        here = not context.capabilities.is_cluster
        reason = "its replicas share the cache of the machine" if here else "nothing is fetched"
        log.warn("PL387", path, f"has no effect: {reason}; remove it")
    elif written:
        log.decide(context.component.role, "model cache", written, "revisions and replicas share downloads")


def _check_requirements(context: PlanContext, log: DecisionLog) -> None:
    """Warn where each new pod installs the requirements of its model, as far as pins list its files."""
    pins = model_pins.pins_of(context, model_uris(context)).values()
    files = {path.rpartition("/")[2] for pin in pins for path in pin.files}
    brings_image = any(container.get("image") for container in written_containers(context.component))
    if not context.choice.is_pilotlight or brings_image or not context.capabilities.is_cluster:
        return
    if CODE in files and files & {FILE, LOCK}:
        message = "has requirements, which each new pod installs before it is ready; build an image with them"
        log.warn("PL389", location(context)[1], message)


def _cache_volume(context: PlanContext) -> tuple[Object, Object]:
    """Return volume and mount of the cache: one that revisions share, else one of the pod."""
    mount: Object = {"name": CACHE_VOLUME, "mountPath": CACHE_DIR}
    shared = _SHARED_CACHE.fullmatch(context.service.annotations.get(names.ANNOTATION_MODEL_CACHE, ""))
    if shared is None or not context.capabilities.is_cluster:
        return {"name": CACHE_VOLUME, "emptyDir": {}}, mount
    if shared["path"]:
        return {"name": CACHE_VOLUME, "hostPath": {"path": shared["path"], "type": "Directory"}}, mount
    claim = {"name": CACHE_VOLUME, "persistentVolumeClaim": {"claimName": shared["claim"]}}
    return claim, mount | ({"subPath": shared["folder"].strip("/")} if shared["folder"] else {})


def _check_scheme(uri: str, path: str, log: DecisionLog) -> bool:
    scheme = uri.partition("://")[0]
    if scheme not in _FETCHED:
        log.error("PL340", path, f"{uri}: {scheme}:// is not supported; use {', '.join(_FETCHED)}, pvc or oci")
    return scheme in _FETCHED


def _local(context: PlanContext, uri: str, log: DecisionLog) -> tuple[StorageMethod | None, str]:
    ours, target, reason = context.choice.is_pilotlight, context.capabilities.target, "a path of the image"
    if target in ("local", "docker", "slurm"):
        reason = "deploy copies it for the revision; --no-snapshot serves it in place"
        if model_pins.follows_repository(context):
            reason = "served in place, since the predictor follows changes of its repository"
    if ours or target in ("local", "docker"):
        return _local_path if ours else _host_path, reason
    message = f"{uri}: a local path does not exist in a third-party image; use a URI, pvc:// or oci://"
    model, known = context.component.model, context.choice.model and find_format(context.choice.model.format)
    if model is not None and known and known.backend:
        own = f"{context.path('model.runtime')}: pilotlight, which loads {known.name} from a path"
        message += f"{'' if model.runtime else ', --target local'}, or {own}"
    log.error("PL342", location(context)[1], message)
    return None, ""


def _model_path(context: PlanContext, path: str) -> tuple[Object, ...]:
    """Return the variable with the model's path; KServe's servers need none for a folder, they read /mnt/models."""
    name = ENV_MODEL_PATH if context.choice.is_pilotlight else "MODEL_PATH"
    wanted = context.choice.is_pilotlight or context.service.group == "ome" or path.endswith(FILE_SUFFIXES)
    return ({"name": name, "value": path},) if wanted else ()


def _in_process(context: PlanContext, uri: str) -> ModelStorage:
    cache, mount = _cache_volume(context)
    pins = model_pins.remote_pins_env(context, *model_uris(context))
    env = (*_model_path(context, uri), {"name": ENV_CACHE_DIR, "value": CACHE_DIR}, *pins, *_token(context))
    return ModelStorage(uri, env, (cache,), (mount,))


def _local_path(context: PlanContext, uri: str) -> ModelStorage:
    return ModelStorage(local_path(uri), _model_path(context, local_path(uri)))


def _host_path(context: PlanContext, uri: str) -> ModelStorage:
    path = _model_file(uri)
    volume = {"name": VOLUME, "hostPath": {"path": local_path(uri)}}
    mount = {"name": VOLUME, "mountPath": path, "readOnly": True}
    return ModelStorage(path, _model_path(context, path), (volume,), (mount,))


def _model_file(uri: str) -> str:
    """Return where a fetched or mounted model lies: in its folder, or the file of a format that is one file."""
    name = uri.partition("?")[0].rstrip("/").rpartition("/")[2]
    return f"{MODEL_DIR}/{name}" if name.endswith(FILE_SUFFIXES) else MODEL_DIR


def _init_container(context: PlanContext, uri: str) -> ModelStorage:
    volume, mount, fetch = _fetched(VOLUME, "storage-initializer", context, uri, MODEL_DIR)
    path = _model_file(uri)
    storage = ModelStorage(path, _model_path(context, path), (volume,), (mount,), (fetch,))
    cache, cache_mount = _cache_volume(context)
    if "emptyDir" in cache:
        return storage
    command = [*fetch["command"][:-2], "--cache", CACHE_DIR, *fetch["command"][-2:]]
    fetch |= {"command": command, "volumeMounts": [*fetch["volumeMounts"], cache_mount]}
    return replace(storage, volumes=(volume, cache), mounts=(mount, cache_mount | {"readOnly": True}))


def _fetched(name: str, container: str, context: PlanContext, uri: str, folder: str) -> tuple[Object, Object, Object]:
    """Return an empty volume, its read-only mount, and the init container that fetches the URI into it."""
    variables = [*model_pins.remote_pins_env(context, uri), *_token(context)]
    fetch = {
        "name": container,
        "image": context.capabilities.own_image(),
        "command": ["python", "-m", "pilotlight_predictor", "fetch", uri, folder],
        **({"env": variables} if variables else {}),
        "resources": {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "2Gi"}},
        "volumeMounts": [{"name": name, "mountPath": folder}],
    }
    return {"name": name, "emptyDir": {}}, {"name": name, "mountPath": folder, "readOnly": True}, fetch


def _volume_claim(context: PlanContext, uri: str) -> ModelStorage:
    path = _model_file(uri)
    volume, mount = _claim(VOLUME, uri, path)
    return ModelStorage(path, _model_path(context, path), (volume,), (mount,))


def _claim(name: str, uri: str, folder: str) -> tuple[Object, Object]:
    """Return volume and mount of `pvc://claim/folder`, also in OME's form `pvc://namespace:claim/folder`."""
    claim, _, inside = uri.removeprefix("pvc://").partition("/")
    volume = {"name": name, "persistentVolumeClaim": {"claimName": claim.rpartition(":")[2], "readOnly": True}}
    mount: Object = {"name": name, "mountPath": folder, "readOnly": True}
    return volume, mount | ({"subPath": inside.strip("/")} if inside.strip("/") else {})


def _several(context: PlanContext) -> ModelStorage:
    """Return the storage of KServe's `storageUris`, each in its folder: claims are mounted, the rest is fetched."""
    volumes, mounts, fetches = [], [], []
    for index, entry in enumerate(context.component.storage_uris):
        name, uri, folder = f"model-{index}", entry["uri"], entry.get("mountPath") or MODEL_DIR
        volume, mount = _claim(name, uri, folder)
        if not uri.startswith("pvc://"):
            volume, mount, fetch = _fetched(name, f"storage-initializer-{index}", context, uri, folder)
            fetches.append(fetch)
        volumes.append(volume)
        mounts.append(mount)
    path = context.component.storage_uris[0].get("mountPath") or MODEL_DIR
    return ModelStorage(path, _model_path(context, path), tuple(volumes), tuple(mounts), tuple(fetches))


def _image_volume(context: PlanContext, uri: str) -> ModelStorage:
    """Mount an OCI image; KServe's model images have the files under /models."""
    reference = uri.partition("://")[2]
    volume = {"name": VOLUME, "image": {"reference": reference, "pullPolicy": "IfNotPresent"}}
    mount = {"name": VOLUME, "mountPath": MODEL_DIR, "subPath": "models", "readOnly": True}
    return ModelStorage(MODEL_DIR, _model_path(context, MODEL_DIR), (volume,), (mount,))


def _node_directory(context: PlanContext, _: str) -> ModelStorage:
    model = context.choice.model
    assert model is not None
    folder = str(model.storage["path"])
    volume = {"name": VOLUME, "hostPath": {"path": folder, "type": "Directory"}}
    mount = {"name": VOLUME, "mountPath": folder, "readOnly": True}
    selector = {model_label(model): "Ready"}
    return ModelStorage(folder, _model_path(context, folder), (volume,), (mount,), node_selector=selector)


def _token(context: PlanContext) -> tuple[Object, ...]:
    """Return credentials: OME's storage.key is a Secret with a hub token, KServe's an entry of a shared Secret.

    Registries get the first imagePullSecret, as in KServe.
    """
    own = context.component.model.storage if context.component.model is not None else {}
    if own.get("key"):
        secret = context.annotation(*document_annotations.STORAGE_SECRET) or "storage-config"
        entry = {"secretKeyRef": {"name": secret, "key": str(own["key"])}}
        override = json.dumps(dict(own.get("parameters") or {}), sort_keys=True)
        return ({"name": "STORAGE_CONFIG", "valueFrom": entry}, {"name": "STORAGE_OVERRIDE_CONFIG", "value": override})
    pull_secrets = context.choice.pod.get("imagePullSecrets")
    if pull_secrets and any(uri.startswith("oci+fetch://") for uri in model_uris(context)):
        login = {"name": pull_secrets[0]["name"], "key": ".dockerconfigjson", "optional": True}
        return ({"name": "REGISTRY_CREDENTIALS", "valueFrom": {"secretKeyRef": login}},)
    model = context.choice.model
    key = str(model.storage.get("key", "")) if model is not None else ""
    if not key or not location(context)[0].startswith(("hf://", "hf_model://")):
        return ()
    return ({"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": key, "key": "token"}}},)


def model_label(model: BaseModel) -> str:
    """Return the node label that OME's model agent sets; long parts are shortened with a hash, as it does."""
    if model.kind == "ClusterBaseModel":
        return f"models.ome.io/clusterbasemodel.{_shortened(model.name, 32)}"
    if len(model.namespace) + len(model.name) <= 38:
        return f"models.ome.io/{model.namespace}.basemodel.{model.name}"
    space = _shortened(model.namespace, max(8, min(8, len(model.namespace))))
    return f"models.ome.io/{space}.basemodel.{_shortened(model.name, 38 - len(space))}"


def _shortened(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{digest}-{text[9 - limit :]}" if limit > 9 else digest[:limit]
