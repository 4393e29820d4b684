"""Containerfile, read as a builder reads it: there is no base image here to build it with."""

import fnmatch
import io
import json
import re
import shlex
import tomllib
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml
from tests.cluster.bed import predictor_image, python_layers

from pilotlight import contract
from pilotlight.plan.support import image_variants
from pilotlight.plan.types import Capabilities
from pilotlight.release.plan_and_render import Sources, plan_all

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
VARIANTS = tuple(sorted(path.stem.removeprefix("image-") for path in (ROOT / "requirements").glob("image-*.txt")))


class Line(NamedTuple):
    word: str
    rest: str


def instructions() -> list[Line]:
    text = re.sub(r"^#.*\n", "", (ROOT / "Containerfile").read_text(), flags=re.MULTILINE)
    lines = [line for line in re.sub(r"\\\n", " ", text).splitlines() if line.strip()]
    return [Line(*line.split(maxsplit=1)) for line in lines]


def rests(word: str) -> list[str]:
    return [line.rest for line in instructions() if line.word == word]


def copied() -> list[str]:
    """Sources out of the tree, one by one."""
    return [source for rest in rests("COPY") if "--from" not in rest for source in rest.split()[:-1]]


def final_stage() -> list[Line]:
    lines = instructions()
    return lines[max(index for index, line in enumerate(lines) if line.word == "FROM") :]


def test_every_copied_file_exists_and_is_not_ignored() -> None:
    patterns = [line for line in (ROOT / ".containerignore").read_text().splitlines() if line[:1] not in ("#", "")]
    allowed = [pattern[1:] for pattern in patterns if pattern.startswith("!")]
    assert patterns[0] == "*"
    for source in copied():
        assert (ROOT / source).exists(), source
        assert any(fnmatch.fnmatch(source.rstrip("/"), pattern) for pattern in allowed), source


def test_everything_that_the_wheel_holds_is_copied() -> None:
    wheel = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    wanted = [*wheel["packages"], *wheel["force-include"], "README.md", "LICENSE", "pyproject.toml"]
    places = [source.rstrip("/") for source in copied()]
    assert not [each for each in wanted if not any(each == place or each.startswith(f"{place}/") for place in places)]


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_variant_is_a_lock_file(variant: str) -> None:
    assert (ROOT / f"requirements/image-{variant}.txt").exists()
    assert "requirements/image-${VARIANT}.txt" in " ".join(rests("RUN"))


def test_the_workflow_builds_every_variant() -> None:
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]
    assert sorted(jobs["images"]["strategy"]["matrix"]["variant"]) == list(VARIANTS)


def test_each_variant_of_the_predictor_has_a_lock_with_its_packages() -> None:
    assert {variant.name for variant in image_variants.table()} == {*VARIANTS} - {"platform"}
    for variant in image_variants.table():
        lock = (ROOT / f"requirements/image-{variant.name}.txt").read_text()
        assert not [name for name in (*variant.packages, "uv") if f"\n{name}==" not in f"\n{lock}"], variant.name


def test_its_page_lists_the_variants_as_planning_knows_them() -> None:
    page = (ROOT / "docs/how-to/kubernetes.md").read_text()
    for variant in image_variants.table():
        tag = Capabilities().own_image(variant.name).partition(":")[2]
        cells = (variant.name, f"`{tag}`", ", ".join(variant.packages), ", ".join(variant.formats))
        assert f"| {' | '.join(cells)} |" in page


def test_an_image_of_ones_own_is_built_on_ours_and_planned_for_what_it_adds() -> None:
    page = (ROOT / "docs/how-to/kubernetes.md").read_text()
    lines = re.findall("^    (FROM|USER|RUN) (.+)$", page, re.MULTILINE)
    (name,) = re.findall("Push it as `(.+?)`", page)
    assert [word for word, _ in lines] == ["FROM", "USER", "RUN", "USER"]
    assert lines[0][1] == Capabilities(image_registry=name.split("/pilotlight")[0]).own_image()
    package = lines[2][1].split()[-1]
    assert package in " ".join(PROJECT["project"]["optional-dependencies"][name.rpartition("-")[2]])
    assert lines[3][1] == "65532:65532"
    text = f"""
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {{name: cat}}
spec: {{predictor: {{model: {{modelFormat: {{name: {package}}}, storageUri: s3://models/cat.cbm, image: "{name}"}}}}}}
"""
    (plan,) = plan_all(Sources(("-",), stdin=io.StringIO(text)), Capabilities()).plans
    assert plan.workloads[0].template["spec"]["containers"][0]["image"] == name


def test_nothing_is_installed_without_hashes_but_the_project_itself() -> None:
    installs = [part for rest in rests("RUN") for part in rest.split("&&") if "pip install" in part]
    assert len(installs) == 4
    for each in installs:
        assert "--require-hashes" in each or "--no-deps /wheel/" in each, each


def test_it_runs_as_a_numbered_nobody() -> None:
    users = [line.rest for line in final_stage() if line.word == "USER"]
    assert users == ["65532:65532"]


def test_probes_are_left_to_the_platform() -> None:
    assert not rests("HEALTHCHECK")


def test_its_version_is_the_projects() -> None:
    assert f'version="{PROJECT["project"]["version"]}"' in " ".join(rests("LABEL"))


def test_it_names_the_ports_of_the_contract() -> None:
    ports = [contract.HTTP_PORT, contract.GRPC_PORT, contract.METRICS_PORT]
    assert [int(port) for port in rests("EXPOSE")[0].split()] == ports


def test_it_starts_as_the_image_of_the_test_bed_does() -> None:
    assert tuple(json.loads(rests("ENTRYPOINT")[0])) == predictor_image.ENTRYPOINT
    environment = [word for line in final_stage() if line.word == "ENV" for word in shlex.split(line.rest)]
    assert environment == [each for each in python_layers.ENVIRONMENT if not each.startswith("PATH=")]
    assert f"/{python_layers.SBOM}" in " ".join(rests("COPY"))
