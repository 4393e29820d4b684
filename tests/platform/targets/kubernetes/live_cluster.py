"""PaperCluster that takes writes: server-side apply with field managers, patches, finalizers, versions and watches.

No controller runs in it: a Deployment stays without pods unless a test writes them. Lists are atomic.
"""

import asyncio
import copy
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import jsonpatch
import yaml
from aiohttp import web
from tests.platform.targets.kubernetes.fake_cluster import PLAIN, PaperCluster, _is, _refusal, _selected, plural

Json = Any
ISVC = ("ome.io/v1beta1/InferenceService", "serving.kserve.io/v1beta1/InferenceService")
LLM = "serving.kserve.io/v1alpha1/LLMInferenceService"
GRAPH = "serving.kserve.io/v1alpha1/InferenceGraph"
LIVE = (
    *PLAIN, *ISVC, LLM, GRAPH, "coordination.k8s.io/v1/Lease", "policy/v1/PodDisruptionBudget",
    "networking.k8s.io/v1/NetworkPolicy", "serving.kserve.io/v1alpha1/ClusterServingRuntime/cluster",
    "apiextensions.k8s.io/v1/CustomResourceDefinition/cluster",
)  # fmt: skip
VERBS = ["create", "delete", "get", "list", "patch", "watch"]
Path = tuple[str, ...]


class LiveCluster(PaperCluster):
    """`calls` are method, kind and name of all requests but discovery and watches."""

    def __init__(self, *objects: Mapping[str, Json], **options: Any) -> None:
        super().__init__(**{"kinds": LIVE, **options})
        self.version, self.calls = 0, list[tuple[str, str, str]]()
        self.undeclared: frozenset[str] = frozenset()  # fields of a status that its CRD does not have
        self._log: list[tuple[int, str, Json]] = []
        self._owners: dict[str, dict[str, set[Path]]] = {}  # by uid and manager; "+" before a manager that applies
        for each in objects:
            self._store(copy.deepcopy(dict(each)), "ADDED")

    def find(self, kind: str, name: str) -> Json:
        """Return the newest version of an object; None: there is none."""
        return next((each for each in self.objects if each["kind"] == kind and each["metadata"]["name"] == name), None)

    def edit(self, kind: str, name: str, change: Json, manager: str = "kubectl-edit") -> None:
        """Change an object by hand, as an update of another field manager."""
        document = copy.deepcopy(self.find(kind, name))
        _merge(document, change)
        self._own(document, manager, set(_leaves(change)), replace=False)
        self._store(document, "MODIFIED")

    def remove(self, kind: str, name: str) -> None:
        self._delete(self.find(kind, name))

    def _names(self, api_version: str) -> list[str]:
        written = [each.removesuffix("/cluster") for each in self.kinds]
        return [each for each in written if each.rpartition("/")[0] == api_version]

    def _resources(self, api_version: str) -> web.Response:
        found = [
            {
                "kind": (kind := name.rpartition("/")[2]), "name": plural(kind), "singularName": kind.lower(),
                "namespaced": name == written, "verbs": VERBS, "categories": ["pilotlight"],
            }
            for written in self.kinds
            if (name := written.removesuffix("/cluster")).rpartition("/")[0] == api_version
        ]  # fmt: skip
        return web.json_response({"resources": found}) if found else _refusal(404, "no such version")

    def _groups(self) -> list[Json]:
        versions = sorted({tuple(kind.split("/")[:2]) for kind in self.kinds if kind[:3] != "v1/"})
        return [
            {
                "name": group,
                "preferredVersion": {"groupVersion": f"{group}/{version}", "version": version},
                "versions": [{"groupVersion": f"{group}/{version}", "version": version}],
            }
            for group, version in versions
        ]

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/api":
            return web.json_response({"versions": ["v1"]})
        return await super()._answer(request)

    async def _object(self, request: web.Request, api_version: str, rest: list[str]) -> web.StreamResponse:
        namespace, path = "", rest
        if rest[0] == "namespaces" and len(rest) > 2:
            namespace, path = rest[1], rest[2:]
        if request.query.get("watch"):
            return await self._stream(request, api_version, namespace, path)
        self.calls.append((request.method, path[0], path[1] if len(path) > 1 else ""))
        if request.method == "POST":
            kind = next(
                each.split("/")[-1] for each in self._names(api_version) if plural(each.split("/")[-1]) == path[0]
            )
            written = await request.json()
            written["metadata"] |= {"namespace": namespace} if namespace else {}
            return self._create({"apiVersion": api_version, "kind": kind, **written})
        replacement = await request.json() if request.method == "PUT" else {}
        found = next((each for each in self.objects if _is(each, api_version, namespace, path[:2])), None)
        if request.method == "PUT":
            return self._replace({**found, **replacement}, found["metadata"]["resourceVersion"])
        if request.method == "PATCH":
            return await self._patch(request, found, path)
        if request.method == "DELETE":
            if found is None:
                return _refusal(404, f"{path[0]} {path[1]} not found")
            self._delete(found)
            return web.json_response({})
        answer = await super()._object(request, api_version, rest)
        if len(path) == 1 and isinstance(answer, web.Response) and answer.status == 200:
            listed = json.loads(answer.text or "{}")
            return web.json_response({**listed, "metadata": {"resourceVersion": str(self.version)}})
        return answer

    def _create(self, document: Json) -> web.Response:
        metadata = document["metadata"]
        metadata.setdefault("name", f"{metadata.get('generateName', '')}{self.version}")
        here = (document["kind"], metadata.get("namespace"), metadata["name"])
        if any((e["kind"], e["metadata"].get("namespace"), e["metadata"]["name"]) == here for e in self.objects):
            return _conflict("AlreadyExists", f"{metadata['name']} already exists", [])
        self._own(document, "pilotlight", set(_leaves(document)))
        return web.json_response(self._store(document, "ADDED"))

    def _replace(self, document: Json, current: str) -> web.Response:
        if document["metadata"].get("resourceVersion", current) != current:
            return _conflict("Conflict", "the object has been modified", [])
        return web.json_response(self._store(document, "MODIFIED"))

    async def _patch(self, request: web.Request, found: Json, path: list[str]) -> web.Response:
        body, kind = await request.read(), request.content_type
        if kind == "application/apply-patch+yaml":
            return self._apply(yaml.safe_load(body), found, request.query, path)
        if found is None:
            return _refusal(404, f"{path[0]} {path[1]} not found")
        document = copy.deepcopy(found)
        if kind == "application/json-patch+json":
            document = jsonpatch.apply_patch(document, json.loads(body))
        else:
            change = json.loads(body)
            wanted = (change.get("metadata") or {}).get("resourceVersion")
            if wanted not in (None, found["metadata"]["resourceVersion"]):
                return _conflict("Conflict", "the object has been modified", [])
            _merge(document, change)
        return web.json_response(self._store(document, "MODIFIED"))

    def _apply(self, wanted: Json, found: Json, query: Mapping[str, str], path: list[str]) -> web.Response:
        manager, document = query["fieldManager"], copy.deepcopy(found) if found else {"metadata": {}}
        leaves = {leaf for leaf in _leaves(wanted) if path[2:] == ["status"] or leaf[0] != "status"}
        owners = self._owners.get(document["metadata"].get("uid", ""), {})
        conflicts = [
            {"reason": "FieldManagerConflict", "field": "." + ".".join(leaf), "message": f'conflict with {shown}'}
            for other, owned in owners.items()
            if other.removeprefix("+") != manager and query.get("force") != "true"
            for leaf in sorted(leaves & owned)
            if _at(document, leaf) != _at(wanted, leaf)
            for shown in [f'"{other[1:]}"' if other[0] == "+" else f'"{other}" using v1']
        ]  # fmt: skip
        if conflicts:
            return _conflict("Conflict", "Apply failed with conflicts", conflicts)
        for gone in owners.get(f"+{manager}", set()) - leaves if path[2:] != ["status"] else ():
            if not any(gone in owned for other, owned in owners.items() if other != f"+{manager}"):
                _drop(document, gone)
        if path[2:] == ["status"]:
            if unknown := self.undeclared & wanted["status"].keys():
                return _refusal(500, f".status.{min(unknown)}: field not declared in schema")
            document["status"] = wanted["status"]
        else:
            _merge(document, {name: value for name, value in wanted.items() if name != "status"})
            if "dryRun" not in query:
                self._own(document, f"+{manager}", leaves)
        return web.json_response(
            document if "dryRun" in query else self._store(document, "MODIFIED" if found else "ADDED")
        )

    def _own(self, document: Json, manager: str, leaves: set[Path], *, replace: bool = True) -> None:
        """Record the fields of a manager, and that no other one has them."""
        uid = document["metadata"].setdefault("uid", f"uid-{self.version}-{len(self._owners)}")
        owners = self._owners.setdefault(uid, {})
        for other in owners:
            owners[other] = owners[other] - {
                leaf for leaf in leaves if other.removeprefix("+") != manager.removeprefix("+")
            }
        owners[manager] = leaves if replace else owners.get(manager, set()) | leaves
        entries = [
            {"manager": each.removeprefix("+"), "operation": "Apply" if each[0] == "+" else "Update",
             "fieldsV1": _fields_v1(owned)}
            for each, owned in owners.items() if owned
        ]  # fmt: skip
        document["metadata"]["managedFields"] = entries

    def _store(self, document: Json, type_: str) -> Json:
        metadata = document["metadata"]
        before = next((each for each in self.objects if each["metadata"].get("uid") == metadata.get("uid", "?")), None)
        metadata.setdefault("uid", f"uid-{self.version}")
        metadata.setdefault("creationTimestamp", datetime.now(UTC).isoformat())
        content = {name: value for name, value in document.items() if name not in ("metadata", "status")}
        old = {name: value for name, value in (before or {}).items() if name not in ("metadata", "status")}
        metadata["generation"] = metadata.get("generation", 0) + (content != old)
        unversioned = {**metadata, "resourceVersion": ""}
        if before and {**before, "metadata": {**before["metadata"], "resourceVersion": ""}} == {
            **document,
            "metadata": unversioned,
        }:
            return before
        self.version += 1
        metadata["resourceVersion"] = str(self.version)
        self.objects = [each for each in self.objects if each is not before]
        if "deletionTimestamp" in metadata and not metadata.get("finalizers"):
            self._log.append((self.version, "DELETED", document))
        else:
            self.objects.append(document)
            self._log.append((self.version, type_, document))
        return document

    def _delete(self, found: Json) -> None:
        document = copy.deepcopy(found)
        document["metadata"].setdefault("deletionTimestamp", datetime.now(UTC).isoformat())
        self._store(document, "MODIFIED")

    async def _stream(self, request: web.Request, api: str, namespace: str, path: list[str]) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        position, since = 0, int(request.query.get("resourceVersion") or 0)
        while not self._end.is_set() and request.transport is not None:
            for version, type_, document in self._log[position:]:
                chosen = _selected(document, request.query.get("labelSelector", ""))
                if version > since and chosen and _is(document, api, namespace, path):
                    with suppress(ConnectionError):  # its client has stopped
                        await answer.write(json.dumps({"type": type_, "object": document}).encode() + b"\n")
                position += 1
            await asyncio.sleep(0.01)
        return answer


def _leaves(value: Json, path: Path = ()) -> Iterator[Path]:
    if isinstance(value, Mapping) and value:
        for name, child in value.items():
            yield from _leaves(child, (*path, name))
    elif path[0] not in ("apiVersion", "kind") and path[:2] not in (("metadata", "name"), ("metadata", "namespace")):
        yield path


def _fields_v1(leaves: set[Path]) -> Json:
    tree: Json = {}
    for leaf in leaves:
        node = tree
        for name in leaf:
            node = node.setdefault(f"f:{name}", {})
    return tree


def _at(document: Json, path: Path) -> Json:
    for name in path:
        document = document.get(name) if isinstance(document, Mapping) else None
    return document


def _drop(document: Json, path: Path) -> None:
    holder = _at(document, path[:-1])
    if isinstance(holder, dict):
        holder.pop(path[-1], None)


def _merge(document: Json, change: Json) -> None:
    """Apply a merge patch."""
    for name, value in change.items():
        if value is None:
            document.pop(name, None)
        elif isinstance(value, Mapping) and isinstance(document.get(name), dict):
            _merge(document[name], value)
        else:
            document[name] = copy.deepcopy(value)


def _conflict(reason: str, message: str, causes: list[Json]) -> web.Response:
    body = {"kind": "Status", "code": 409, "reason": reason, "message": message, "details": {"causes": causes}}
    return web.json_response(body, status=409)
