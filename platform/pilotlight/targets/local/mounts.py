"""Map container paths to local paths or URIs, since there are no mounts on this machine. Pure.

A hostPath maps to itself. A folder that an init container of the platform fetches maps to the URI, which the predictor
fetches itself. An emptyDir needs nothing. Any other volume is refused.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pilotlight.contract import is_predictor_image

Json = Any
PathMap = Mapping[str, str]

_NAMES: Final = {
    "persistentVolumeClaim": "a volume claim",
    "csi": "a CSI volume",
    "image": "an image",
    "nfs": "an NFS share",
    "ephemeral": "a volume claim",
}
_FILES: Final = ("secret", "configMap", "projected", "downwardAPI")


def path_map(pod: Mapping[str, Json], container: Mapping[str, Json], refused: list[str]) -> PathMap:
    """Return the mapping from container paths to their replacements."""
    volumes = {str(volume.get("name")): volume for volume in pod.get("volumes") or ()}
    paths = _fetches(pod, refused)
    for mount in container.get("volumeMounts") or ():
        volume, path = volumes.get(str(mount["name"]), {}), str(mount["mountPath"]).rstrip("/")
        if "hostPath" in volume:
            inside = str(mount.get("subPath") or "").strip("/")
            folder = str(volume["hostPath"]["path"]).rstrip("/")
            paths[path] = f"{folder}/{inside}" if inside else folder
        elif "emptyDir" not in volume:
            refused.append(_refusal(str(mount["name"]), path, volume))
    return paths


def _refusal(name: str, path: str, volume: Mapping[str, Json]) -> str:
    kind = next((key for key in volume if key != "name"), "nothing")
    if kind in _FILES:
        return f"volume {name}: files of a {kind} are not written to {path} here; give the values as env, or a hostPath"
    what = _NAMES.get(kind, kind)
    return (
        f"volume {name} at {path} is {what}, which this machine does not have; use a local path, a hostPath or a URI "
        "such as s3://, or --target kubernetes"
    )


def _fetches(pod: Mapping[str, Json], refused: list[str]) -> dict[str, str]:
    """Return folder → URI of `python -m pilotlight_predictor fetch URI DIR`; refuse any other init container."""
    uris: dict[str, str] = {}
    for container in pod.get("initContainers") or ():
        image, command = str(container.get("image")), [*(container.get("command") or ())]
        if is_predictor_image(image) and command[-3:-2] == ["fetch"]:
            uris[str(command[-1]).rstrip("/")] = str(command[-2])
        else:
            refused.append(f"init container {container.get('name')} ({image}): only the predictor itself is run here")
    return uris


def map_path(text: str, paths: PathMap) -> str:
    """Replace a mapped path at the start of the text or after `--option=`."""
    option, sign, value = text.partition("=")
    if sign and option.startswith("--"):
        return f"{option}={map_path(value, paths)}"
    for path in sorted(paths, key=len, reverse=True):
        if text == path or text.startswith(f"{path}/"):
            return paths[path] + text[len(path) :]
    return text


def unused_fetches(pod: Mapping[str, Json], texts: Sequence[str]) -> list[str]:
    """Return problems of fetched folders that no setting names: the predictor would not find the model."""
    folders = {folder: uri for folder, uri in _fetches(pod, []).items() if folder not in texts}
    return [
        f"{uri} is fetched into {folder}, which no variable names; write one storageUri"
        for folder, uri in folders.items()
    ]
