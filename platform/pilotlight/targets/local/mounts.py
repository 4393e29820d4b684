"""Volumes where there are no mounts: which paths of a container are other paths, or URIs, on this machine. Pure.

A hostPath is here under its own name. What one of our init containers would fetch into a folder, the predictor fetches
itself when it is given the URI in the folder's place. Empty folders need nothing. All else cannot be here.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pilotlight.contract import ours

Json = Any
Moves = Mapping[str, str]

_NAMES: Final = {
    "persistentVolumeClaim": "a volume claim",
    "csi": "a CSI volume",
    "image": "an image",
    "nfs": "an NFS share",
    "ephemeral": "a volume claim",
}
_FILES: Final = ("secret", "configMap", "projected", "downwardAPI")


def moves_of(pod: Mapping[str, Json], container: Mapping[str, Json], refused: list[str]) -> Moves:
    """From a path in the container to what is used in its place."""
    volumes = {str(volume.get("name")): volume for volume in pod.get("volumes") or ()}
    moves = _fetches(pod, refused)
    for mount in container.get("volumeMounts") or ():
        volume, path = volumes.get(str(mount["name"]), {}), str(mount["mountPath"]).rstrip("/")
        if "hostPath" in volume:
            inside = str(mount.get("subPath") or "").strip("/")
            folder = str(volume["hostPath"]["path"]).rstrip("/")
            moves[path] = f"{folder}/{inside}" if inside else folder
        elif "emptyDir" not in volume:
            refused.append(_refusal(str(mount["name"]), path, volume))
    return moves


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
    """`python -m pilotlight_predictor fetch URI DIR`; any other init container is refused."""
    found: dict[str, str] = {}
    for container in pod.get("initContainers") or ():
        image, command = str(container.get("image")), [*(container.get("command") or ())]
        if ours(image) and command[-3:-2] == ["fetch"]:
            found[str(command[-1]).rstrip("/")] = str(command[-2])
        else:
            refused.append(f"init container {container.get('name')} ({image}): only the predictor itself is run here")
    return found


def moved(text: str, moves: Moves) -> str:
    """The text with a path in front, or behind `--option=`, replaced by where it really is."""
    option, sign, value = text.partition("=")
    if sign and option.startswith("--"):
        return f"{option}={moved(value, moves)}"
    for path in sorted(moves, key=len, reverse=True):
        if text == path or text.startswith(f"{path}/"):
            return moves[path] + text[len(path) :]
    return text


def unused_fetches(pod: Mapping[str, Json], texts: Sequence[str]) -> list[str]:
    """What an init container would bring, though no setting names its folder: the predictor would not find it."""
    folders = {folder: uri for folder, uri in _fetches(pod, []).items() if folder not in texts}
    return [
        f"{uri} is fetched into {folder}, which no variable names; write one storageUri"
        for folder, uri in folders.items()
    ]
