"""`platformctl infer`: one request to a service, made from what its model says that it takes."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import click

from pilotlight.contract import HEADER_COLD_START, HEADER_TAG
from pilotlight.conversation import Reply
from pilotlight.errors import NotFound, PlatformError, UsageError
from platformctl import arrays, asking, output, targets
from platformctl.gateway import Gateway

if TYPE_CHECKING:
    from pilotlight.targets.target import ServiceStatus

FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)
SHOWN: Final = 12
SLOW_S: Final = 0.5  # a first answer that takes longer has waited for a start, though no gateway of ours says so


@click.command()
@click.argument("name")
@targets.options
@click.option(
    "--data", metavar="JSON", help='Values of one input, {"NAME": values}, or a whole V2 request; - is stdin.'
)
@click.option("--file", type=FILE, metavar="FILE", help="The same from .json; an array from .npy; else its bytes.")
@click.option("--image", type=FILE, metavar="FILE", help="A picture, in the size and type that the model takes.")
@click.option("--text", metavar="TEXT", help="One string.")
@click.option("--binary", type=FILE, metavar="FILE", help="A tensor as it lies in memory, little-endian.")
@click.option("--input", "wanted", default="", metavar="NAME", help="Which input, where the model has several.")
@click.option("--model", default="", metavar="NAME", help="Which model, where it is not called as the service.")
@click.option("--tag", default="", metavar="TAG", help="Only the revision with this tag.")
@click.option("--token", envvar="PILOTLIGHT_TOKEN", metavar="TOKEN", help="For services that ask for one.")
@click.option("--timeout", default=300.0, show_default=True, metavar="SECONDS", help="For the answer.")
@output.formats("table", "json", "yaml")
def infer(
    at: targets.At, name: str, wanted: str, model: str, tag: str, token: str | None, timeout: float, **given: Any
) -> None:
    """Ask a service, which starts if nothing of it runs.

    Example: platformctl infer iris --data '[5.1, 3.5, 1.4, 0.2]'
    """
    kinds = [kind for kind, value in given.items() if value is not None]
    if len(kinds) != 1:
        raise UsageError(f"one of {', '.join(f'--{kind}' for kind in given)} is needed", f"got {len(kinds)}")
    key, target = at.key(name), at.reach()
    headers = {**({HEADER_TAG: tag} if tag else {}), **({"authorization": f"Bearer {token}"} if token else {})}
    with target.way(tagged(target.status(key), tag)) as way:
        gateway = Gateway(way.url, {**way.headers, **headers})
        path = f"/v2/models/{quote(model or key[1], safe='')}"
        about = gateway.ask("GET", path, timeout=timeout)
        metadata = checked(about, model or key[1], models(gateway, timeout) if about.status == 404 else ())
        request = made(kinds[0], given[kinds[0]], asking.inputs_of(metadata), wanted)
        reply = gateway.ask("POST", f"{path}/infer", request.body, request.headers, timeout)
    answer = checked(reply, model or key[1])
    told = about.headers.get(HEADER_COLD_START) or reply.headers.get(HEADER_COLD_START)
    show(answer, reply, told or (f"{1000 * about.seconds:.0f}" if about.seconds > SLOW_S else None))


def tagged(status: "ServiceStatus", tag: str) -> "ServiceStatus":
    """With the address of the revision that has the tag, where a target gives tags addresses of their own."""
    from msgspec.structs import replace

    addresses = {name: each.url for each in status.revisions if each.url for name in each.tags}
    if not tag or not any(each.url for each in status.revisions):
        return status
    if tag not in addresses:
        there = ", ".join(sorted(addresses)) or "none"
        raise NotFound(f"no revision of {status.name} has the tag {tag}; there are {there}", "platformctl status NAME")
    return replace(status, url=addresses[tag])


def made(kind: str, value: Any, inputs: list[asking.Input], wanted: str) -> asking.Request:
    """What was typed, as a request."""
    if kind == "data":
        return asking.from_json(_parsed(sys.stdin.read() if value == "-" else value), inputs, wanted)
    if kind == "file" and value.suffix == ".json":
        return asking.from_json(_parsed(value.read_text()), inputs, wanted)
    of = asking.one(inputs, wanted)
    if kind == "file" and value.suffix == ".npy":
        return asking.encode([arrays.saved(of, value)])
    if kind == "image":
        return asking.encode([arrays.picture(of, value)])
    if kind == "text":
        return asking.encode([asking.text(of, value)])
    return asking.encode([asking.content(of, value.read_bytes())])


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise UsageError(f"the data is no JSON: {error}", "text is given with --text") from None


def models(gateway: Gateway, timeout: float) -> list[str]:
    """Names of those that the service has; empty where it does not tell."""
    reply = gateway.ask("GET", "/v2/models", timeout=timeout)
    try:
        return list(json.loads(reply.body)["models"]) if reply.status == 200 else []
    except (ValueError, KeyError, TypeError):
        return []


def checked(reply: Reply, model: str, there: Sequence[str] = ()) -> dict[str, Any]:
    """The answer's document. Anything but a success is raised with what the service says, and with what there is."""
    try:
        document = json.loads(reply.body)
    except ValueError:
        document = {"error": reply.body[:200].decode(errors="replace")}
    if reply.status == 200 and isinstance(document, dict):
        return document
    said = document.get("error", document) if isinstance(document, dict) else document
    said = said or "an empty answer, which is an ingress's that knows no such service"
    if reply.status == 404:
        raise NotFound(f"{model}: {said}", f"--model names the model; there are {', '.join(there)}" if there else "")
    raise PlatformError(f"the service answered {reply.status}: {said}")


def show(answer: Mapping[str, Any], reply: Reply, cold_start: str | None) -> None:
    woken = f", after a cold start of {cold_start} ms" if cold_start else ""
    rows = [
        (each["name"], each["datatype"], str(each["shape"]).replace(" ", ""), values(each.get("data", [])))
        for each in answer.get("outputs", ())
    ]
    output.data(answer, output.columns([("OUTPUT", "TYPE", "SHAPE", "VALUES"), *rows], indent=""))
    output.note(f"answered in {1000 * reply.seconds:.1f} ms{woken}")


def values(data: list[Any]) -> str:
    """The first of them; numbers as short as they can be told apart by."""
    shown = [f"{each:.6g}" if isinstance(each, float) else str(each) for each in asking.flatten(data)]
    return " ".join(shown[:SHOWN]) + (f" … ({len(shown)} in all)" if len(shown) > SHOWN else "")
