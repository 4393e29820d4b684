"""Rendered manifests of every example, and the platform's chart, before judges of others."""

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from tests.judges import helm, policies
from tests.judges.gomodules import BUILD_SECONDS, Unavailable
from tests.judges.policies import EXCEPTIONS
from tests.judges.verdict import absent

from platformctl.commands.document.render import render

pytestmark = [pytest.mark.security, pytest.mark.timeout(BUILD_SECONDS)]
ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(path for path in (ROOT / "examples").rglob("*.yaml") if "kind: InferenceService" in path.read_text())
CASES = [None, *sorted((ROOT / "helm/inference-platform/ci").glob("*.yaml"))]


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("manifests")
    for path in EXAMPLES:
        done = CliRunner().invoke(render, ["-f", str(path)])
        assert done.exit_code == 0, done.stderr
        _write(folder / f"{path.parent.name}-{path.name}", helm.documents(done.stdout))
    for case in CASES:
        flags = ("--values", str(case)) if case else ()
        try:
            objects = helm.template(ROOT / "helm/inference-platform", "platform", *flags, namespace="pilotlight-system")
        except Unavailable as reason:
            absent(reason)
        _write(folder / f"chart-{case.name if case else 'default.yaml'}", objects)
    return folder


def _write(path: Path, manifests: list[dict[str, object]]) -> None:
    path.write_text(yaml.safe_dump_all(policies.with_pods_visible(manifests)))


def test_there_are_examples_to_judge() -> None:
    assert len(EXAMPLES) > 9


def test_kube_score_finds_nothing_that_has_no_reason(rendered: Path) -> None:
    try:
        found = policies.kube_score(sorted(rendered.iterdir()))
    except Unavailable as reason:
        absent(reason)
    assert not policies.unexplained(found, EXCEPTIONS)
    assert not policies.unused(found, [each for each in EXCEPTIONS if not each.check.startswith("CKV")])


@pytest.mark.long
def test_checkov_finds_nothing_that_has_no_reason(rendered: Path) -> None:
    try:
        found = policies.checkov(rendered)
    except Unavailable as reason:
        absent(reason)
    assert not policies.unexplained(found, EXCEPTIONS)
    assert not policies.unused(found, [each for each in EXCEPTIONS if each.check.startswith("CKV")])
