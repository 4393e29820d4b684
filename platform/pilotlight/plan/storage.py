"""How the model's bytes reach the container: one decision per component, given to pods.py as volumes and variables.

Our predictor fetches in its own process, so that download, imports and loading overlap. Foreign servers get an init
container with our `fetch`, unless the bytes can be mounted: a claim, an OCI image, a node that a model agent filled.
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pilotlight.contract import ENV_CACHE_DIR, ENV_SETTINGS_PREFIX
from pilotlight.plan import annotations
from pilotlight.plan.ledger import Ledger
from pilotlight.plan.subject import Subject
from pilotlight.spec.model import BaseModel

Json = Any
MODEL_DIR: Final = "/mnt/models"
CACHE_DIR: Final = "/var/cache/pilotlight"
VOLUME: Final = "model"
ENV_MODEL_PATH: Final = f"{ENV_SETTINGS_PREFIX}MODEL_PATH"
_ORACLE: Final = re.compile(r"oci://n/[^/]+/b/[^/]+/o/")
_FETCHED: Final = ("s3", "gs", "gcs", "az", "azure", "as", "https", "http", "hf", "hf_model", "storage-config")
CONFIGURED: Final = "storage-config://"  # bucket and credentials come out of an entry of KServe's Secret


@dataclass(frozen=True, slots=True)
class Storage:
    """What a pod needs so that its main container finds the model under `path`."""

    path: str = ""
    env: tuple[dict[str, Json], ...] = ()
    volumes: tuple[dict[str, Json], ...] = ()
    mounts: tuple[dict[str, Json], ...] = ()
    init_containers: tuple[dict[str, Json], ...] = ()
    node_selector: Mapping[str, str] = field(default_factory=dict)


def decide_storage(subject: Subject, ledger: Ledger) -> Storage:
    explains = subject.component.role == "explainer" and subject.component.model is not None
    if not (subject.serves_model or explains) or subject.choice.gateway:
        return Storage()
    if subject.component.storage_uris:
        ledger.decide(subject.component.role, "storage", "init container each", "storageUris lists several sources")
        return _several(subject)
    uri, _ = location(subject)
    way, reason = _way(subject, uri, ledger)
    if way is None:
        return Storage()
    ledger.decide(subject.component.role, "storage", way.__name__.strip("_").replace("_", " "), reason)
    return _with_adapter(subject, way(subject, uri), ledger)


def _with_adapter(subject: Subject, storage: Storage, ledger: Ledger) -> Storage:
    """An adapter is small: a claim is mounted, anything else fetched before the engine starts."""
    adapter = subject.choice.adapter
    if adapter is None:
        return storage
    volume, mount = _claim("adapter", adapter.uri, adapter.path)
    fetches: tuple[dict[str, Json], ...] = ()
    if not adapter.uri.startswith("pvc://"):
        _check_scheme(adapter.uri, "spec.model.fineTunedWeights", ledger)
        mount = {"name": "adapter", "mountPath": adapter.path, "readOnly": True}
        volume = {"name": "adapter", "emptyDir": {}}
        target = {"name": "adapter", "mountPath": adapter.path}
        fetches = (_fetch("adapter-initializer", subject, adapter.uri, target),)
    return replace(
        storage,
        volumes=(*storage.volumes, volume),
        mounts=(*storage.mounts, mount),
        init_containers=(*storage.init_containers, *fetches),
    )


def location(subject: Subject) -> tuple[str, str]:
    """The model's URI and where the document writes it: the model, the component, or a custom container's variable."""
    component, model = subject.component, subject.choice.model
    if component.model is not None and component.model.storage_uri:
        return component.model.storage_uri, subject.path("model.storageUri")
    for variable in subject.choice.container.get("env") or ():
        if variable.get("name") == "STORAGE_URI":
            return str(variable.get("value", "")), subject.path("containers")
    storage = component.model.storage if component.model is not None else {}
    if storage.get("key"):
        return f"{CONFIGURED}{str(storage.get('path', '')).lstrip('/')}", subject.path("model.storage")
    if model is not None and (model.storage_uri or model.storage):
        return model.storage_uri or _from_parameters(model.storage), "spec.model.name"
    return _from_parameters(storage), subject.path("model.storage")


def _from_parameters(storage: Mapping[str, Json]) -> str:
    """KServe's `storage: {path, parameters: {type: s3, bucket: …}}` as a URI."""
    parameters = storage.get("parameters") or {}
    scheme, bucket = str(parameters.get("type", "")), str(parameters.get("bucket", ""))
    path = str(storage.get("path", "")).lstrip("/")
    return f"{scheme}://{bucket}/{path}" if scheme and bucket else ""


Way = Callable[[Subject, str], Storage]


def _way(subject: Subject, uri: str, ledger: Ledger) -> tuple[Way | None, str]:
    """The first way that fits, with why. Order: what can be mounted, what is on the node, what must be fetched."""
    model, ours = subject.choice.model, subject.choice.ours
    scheme = uri.partition("://")[0] if "://" in uri else ""
    if scheme == "pvc":
        return _volume_claim, "pvc:// names a claim"
    if scheme in ("oci", "oci+native") and not _ORACLE.match(uri):
        return _image_volume, "oci:// names an image, which the kubelet pulls and caches"
    if _on_node(subject, model) and not (ours and scheme in _FETCHED):
        return _node_directory, "the BaseModel has storage.path: OME's model agent puts it on the node"
    if not uri:
        return None, ""
    if not scheme or scheme in ("file", "local"):
        return _local(subject, uri, ledger)
    if not _check_scheme(uri, location(subject)[1], ledger):
        return None, ""
    if ours:
        return _in_process, "our predictor fetches while it imports"
    return _init_container, "a foreign image cannot fetch; ours does it before"


def _check_scheme(uri: str, path: str, ledger: Ledger) -> bool:
    scheme = uri.partition("://")[0]
    if scheme not in _FETCHED:
        ledger.error("PL340", path, f"{uri}: nothing here can fetch {scheme}://; use {', '.join(_FETCHED)}, pvc or oci")
    return scheme in _FETCHED


def _on_node(subject: Subject, model: BaseModel | None) -> bool:
    return subject.service.group == "ome" and model is not None and bool(model.storage.get("path"))


def _local(subject: Subject, uri: str, ledger: Ledger) -> tuple[Way | None, str]:
    if subject.choice.ours:
        return _in_place, "a path is used where it is: in the image, or on this machine"
    ledger.error(
        "PL342", location(subject)[1],
        f"{uri}: a path of this machine does not exist in a foreign image; use a URI, pvc:// or oci://",
    )  # fmt: skip
    return None, ""


def _model_path(subject: Subject, path: str) -> tuple[dict[str, Json], ...]:
    """Ours is told by its own setting; OME's servers read MODEL_PATH, KServe's look into /mnt/models."""
    name = ENV_MODEL_PATH if subject.choice.ours else "MODEL_PATH"
    return ({"name": name, "value": path},) if subject.choice.ours or subject.service.group == "ome" else ()


def _in_process(subject: Subject, uri: str) -> Storage:
    cache: dict[str, Json] = {"name": "model-cache", "emptyDir": {}}
    env = (*_model_path(subject, uri), {"name": ENV_CACHE_DIR, "value": CACHE_DIR}, *_token(subject))
    return Storage(uri, env, (cache,), ({"name": "model-cache", "mountPath": CACHE_DIR},))


def _in_place(subject: Subject, uri: str) -> Storage:
    found = uri.partition("://")[2] or uri
    return Storage(found, _model_path(subject, found))


def _init_container(subject: Subject, uri: str) -> Storage:
    mount = {"name": VOLUME, "mountPath": MODEL_DIR}
    fetch = _fetch("storage-initializer", subject, uri, mount)
    read = {**mount, "readOnly": True}
    return Storage(MODEL_DIR, _model_path(subject, MODEL_DIR), ({"name": VOLUME, "emptyDir": {}},), (read,), (fetch,))


def _fetch(name: str, subject: Subject, uri: str, mount: Mapping[str, str]) -> dict[str, Json]:
    variables = list(_token(subject))
    return {
        "name": name,
        "image": subject.capabilities.image,
        "command": ["python", "-m", "pilotlight_predictor", "fetch", uri, mount["mountPath"]],
        **({"env": variables} if variables else {}),
        "resources": {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "2Gi"}},
        "volumeMounts": [dict(mount)],
    }


def _volume_claim(subject: Subject, uri: str) -> Storage:
    volume, mount = _claim(VOLUME, uri, MODEL_DIR)
    return Storage(MODEL_DIR, _model_path(subject, MODEL_DIR), (volume,), (mount,))


def _claim(name: str, uri: str, folder: str) -> tuple[dict[str, Json], dict[str, Json]]:
    """`pvc://claim/folder`; OME writes `pvc://namespace:claim/folder`, and a pod only sees claims of its namespace."""
    claim, _, inside = uri.removeprefix("pvc://").partition("/")
    volume = {"name": name, "persistentVolumeClaim": {"claimName": claim.rpartition(":")[2], "readOnly": True}}
    mount: dict[str, Json] = {"name": name, "mountPath": folder, "readOnly": True}
    return volume, mount | ({"subPath": inside.strip("/")} if inside.strip("/") else {})


def _several(subject: Subject) -> Storage:
    """KServe's `storageUris`: each under a folder of its own. Claims are mounted, the rest is fetched before."""
    volumes, mounts, fetches = [], [], []
    for index, entry in enumerate(subject.component.storage_uris):
        name, uri, folder = f"model-{index}", entry["uri"], entry.get("mountPath") or MODEL_DIR
        volume, mount = _claim(name, uri, folder)
        if not uri.startswith("pvc://"):
            volume, mount = {"name": name, "emptyDir": {}}, {"name": name, "mountPath": folder, "readOnly": True}
            target = {"name": name, "mountPath": folder}
            fetches.append(_fetch(f"storage-initializer-{index}", subject, uri, target))
        volumes.append(volume)
        mounts.append(mount)
    path = subject.component.storage_uris[0].get("mountPath") or MODEL_DIR
    return Storage(path, _model_path(subject, path), tuple(volumes), tuple(mounts), tuple(fetches))


def _image_volume(subject: Subject, uri: str) -> Storage:
    """KServe's model images keep the files under /models."""
    reference = uri.partition("://")[2]
    volume = {"name": VOLUME, "image": {"reference": reference, "pullPolicy": "IfNotPresent"}}
    mount = {"name": VOLUME, "mountPath": MODEL_DIR, "subPath": "models", "readOnly": True}
    return Storage(MODEL_DIR, _model_path(subject, MODEL_DIR), (volume,), (mount,))


def _node_directory(subject: Subject, _: str) -> Storage:
    model = subject.choice.model
    assert model is not None
    folder = str(model.storage["path"])
    volume = {"name": VOLUME, "hostPath": {"path": folder, "type": "Directory"}}
    mount = {"name": VOLUME, "mountPath": folder, "readOnly": True}
    return Storage(
        folder, _model_path(subject, folder), (volume,), (mount,), node_selector={model_label(model): "Ready"}
    )


def _token(subject: Subject) -> tuple[dict[str, Json], ...]:
    """OME's storage.key is the Secret that holds a hub's token; KServe's is an entry of a Secret for all stores."""
    own = subject.component.model.storage if subject.component.model is not None else {}
    if own.get("key"):
        return _configured(subject, own)
    model = subject.choice.model
    key = str(model.storage.get("key", "")) if model is not None else ""
    if not key or not location(subject)[0].startswith(("hf://", "hf_model://")):
        return ()
    return ({"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": key, "key": "token"}}},)


def _configured(subject: Subject, storage: Mapping[str, Json]) -> tuple[dict[str, Json], ...]:
    secret = subject.annotation(*annotations.STORAGE_SECRET) or "storage-config"
    entry = {"secretKeyRef": {"name": secret, "key": str(storage["key"])}}
    said = json.dumps(dict(storage.get("parameters") or {}), sort_keys=True)
    return ({"name": "STORAGE_CONFIG", "valueFrom": entry}, {"name": "STORAGE_OVERRIDE_CONFIG", "value": said})


def model_label(model: BaseModel) -> str:
    """The node label that OME's model agent sets; parts that are too long get a hash in front, as it does."""
    if model.kind == "ClusterBaseModel":
        return f"models.ome.io/clusterbasemodel.{_shortened(model.name, 32)}"
    room = 38 if len(model.namespace) + len(model.name) > 38 else 0
    if not room:
        return f"models.ome.io/{model.namespace}.basemodel.{model.name}"
    space = _shortened(model.namespace, max(8, min(8, len(model.namespace))))
    return f"models.ome.io/{space}.basemodel.{_shortened(model.name, room - len(space))}"


def _shortened(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{digest}-{text[9 - limit :]}" if limit > 9 else digest[:limit]
