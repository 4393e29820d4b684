"""Resolution of a network architecture to the URI of its container image. Pure, but for the tables of archs.py.

    config file → key → IMAGE_<KEY> of the environment, else the table of defaults → versions.yaml → URI

A value with a slash or a colon is a URI and is returned unchanged, at any step.
"""

from collections.abc import Mapping
from typing import Any

from pilotlight.errors import UsageError
from pilotlight.microservices import archs


def resolve(network_arch: str, environ: Mapping[str, str]) -> str:
    key = archs.arch(network_arch, environ).image_key
    service = archs.reference("service.json", environ)
    mapping = (service.get("docker_image_defaults") or {}).get("mapping") or {}
    return resolve_key(key, mapping, archs.reference("versions.yaml", environ), environ)


def resolve_key(key: str, mapping: Mapping[str, str], versions: Mapping[str, Any], environ: Mapping[str, str]) -> str:
    """Resolve an image key, or return it if it is a URI."""
    if is_uri(key):
        return key
    override = environ.get(f"IMAGE_{key}", "").strip()
    value = override or mapping.get(key, "")
    where = f"IMAGE_{key}" if override else f"docker_image_defaults.mapping.{key}"
    if not value:
        raise UsageError(f"no image is known for {key}", f"set IMAGE_{key} to the URI of one")
    return value if is_uri(value) else _version(value, versions, where, key)


def is_uri(value: str) -> bool:
    return "/" in value or ":" in value


def _version(dotted: str, versions: Mapping[str, Any], where: str, key: str) -> str:
    """Return the image of `group.name` below `images` of versions.yaml."""
    group, _, name = dotted.partition(".")
    image = ((versions.get("images") or {}).get(group) or {}).get(name)
    if not isinstance(image, str) or not image:
        message = f"{where} = {dotted}, which versions.yaml does not have below images"
        raise UsageError(message, f"set IMAGE_{key} to the URI of an image")
    return image
