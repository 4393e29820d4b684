"""OME's guide, document by document: each becomes manifests that the cluster would take; a fragment is completed."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.judges.verdict import assert_valid

from pilotlight.catalogue.catalogue import builtin
from pilotlight.plan import plan
from pilotlight.render import render
from pilotlight.spec.load_documents import load
from pilotlight.spec.problems import InvalidDocument
from pilotlight.spec.service import Component, Reference

GUIDE = Path(__file__).parents[1] / "platform/spec/documents/ome-guide"
MODEL = Reference("llama-3-70b-instruct", "ClusterBaseModel", "ome.io")
DISAGGREGATED = Reference("deepseek-r1", "ClusterBaseModel", "ome.io")
# All others are raw.
MODES = {name: name for name in ("disaggregated", "multi-node", "serverless")} | {"decoder": "disaggregated"}


@pytest.mark.parametrize("path", sorted(GUIDE.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_document_of_the_guide_becomes_valid_manifests_in_its_mode(path: Path) -> None:
    (service,) = load([str(path)]).services
    if service.model is None:
        parts = {"engine": Component("engine"), **service.components}
        if "decoder" in parts:
            parts["router"] = Component("router")
        service = replace(service, components=parts, model=DISAGGREGATED if "decoder" in parts else MODEL)
    made = plan(service, builtin())
    assert made.mode == MODES.get(path.stem, "raw")
    assert_valid(manifest.document for manifest in render(made))


def test_the_guide_s_decoder_alone_is_refused() -> None:
    (service,) = load([str(GUIDE / "decoder.yaml")]).services
    parts = {"engine": Component("engine"), **service.components}
    with pytest.raises(InvalidDocument, match=r"add `router: \{\}`"):
        plan(replace(service, components=parts, model=DISAGGREGATED), builtin())
