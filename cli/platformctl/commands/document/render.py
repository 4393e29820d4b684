"""`platformctl render`: manifests of documents, as a stream or one file per object."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pilotlight.k8s.manifest import to_yaml
from platformctl import manifest_files, options, output
from platformctl.services import helm

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pilotlight.k8s.manifest import Manifest


@click.command()
@options.cluster_options
@click.option(
    "--split", type=click.Path(file_okay=False, path_type=Path), metavar="DIR", help="Write one file per object there."
)
@click.option("--with", "tool", type=click.Choice(["helm"]), help="Render with Helm and our chart.")
@output.formats("yaml", "json")
def render(document_options: options.DocumentOptions, split: Path | None, tool: str | None) -> None:
    """Print the manifests of InferenceServices, in apply order.

    Example: platformctl render -f service.yaml | kubectl apply -f -
    """
    planned = document_options.plan(for_cluster=True)
    manifests = planned.manifests() if tool is None else helm.render(planned)
    if split is None:
        output.text(stream(manifests, as_json=output.chosen() == "json"))
        return
    written, removed = manifest_files.write(split, manifests, as_json=output.chosen() == "json")
    output.text("".join(f"{split / name}\n" for name in written))
    for name in removed:
        output.note(f"removed {split / name}: it is no longer rendered")


def stream(manifests: "Sequence[Manifest]", as_json: bool) -> str:
    """Return YAML documents, or a JSON List as kubectl takes it."""
    if not as_json:
        return to_yaml(manifests)
    items: list[Any] = [manifest.document for manifest in manifests]
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items}, indent=2, ensure_ascii=False) + "\n"
