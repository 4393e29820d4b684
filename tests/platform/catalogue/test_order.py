"""The choice is the same however the catalogue is ordered, and the same every time."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from tests.platform.catalogue.catalogue_cases import catalogue, kserve, line, model, ome, runtime

from pilotlight.catalogue.runtime_selection import select_runtime
from pilotlight.spec.service import BaseModel, Group, ModelSpec, Runtime

SIZES = ("", "1B", "7B", "70B", "junk")


@st.composite
def runtimes(draw: st.DrawFn, group: Group) -> list[Runtime]:
    names = draw(st.lists(st.sampled_from("abcdef"), unique=True, max_size=6))
    return [draw(_runtime(name, group)) for name in names]


@st.composite
def _runtime(draw: st.DrawFn, name: str, group: Group) -> Runtime:
    lines = draw(st.lists(_lines, min_size=1, max_size=3))
    bounds = draw(st.none() | st.tuples(st.sampled_from(SIZES), st.sampled_from(SIZES)))
    made = runtime(name, *lines, group=group, namespace=draw(st.sampled_from(("", "team", "other"))), size_range=bounds)
    return replace(made, disabled=draw(st.booleans()), protocols=draw(st.sampled_from(((), ("v1",), ("v2", "v1")))))


_lines = st.builds(
    line,
    st.sampled_from(("safetensors", "sklearn")),
    version=st.sampled_from(("", "1", "*")),
    framework=st.sampled_from(("", "transformers", "*")),
    architecture=st.sampled_from(("", "A", "*")),
    priority=st.integers(1, 3),
    auto_select=st.booleans(),
)
_models = st.builds(
    model,
    format_version=st.sampled_from(("", "1")),
    framework=st.sampled_from(("", "transformers")),
    architecture=st.sampled_from(("", "A")),
    parameter_size=st.sampled_from(SIZES),
)


@given(st.data(), runtimes("ome"), _models)
def test_ome_does_not_depend_on_the_order(data: st.DataObject, found: list[Runtime], served: BaseModel) -> None:
    service = ome()
    shuffled = data.draw(st.permutations(found))
    one = select_runtime(service, service.components["engine"], catalogue(*found, models=(served,)))
    other = select_runtime(service, service.components["engine"], catalogue(*shuffled, models=(served,)))
    assert one == other
    assert (one.runtime is None) == bool(one.problems)


@given(st.data(), runtimes("kserve"), st.sampled_from(("", "1", "2")), st.sampled_from(("", "v1", "v2")))
def test_kserve_does_not_depend_on_it_either(
    data: st.DataObject, found: list[Runtime], version: str, protocol: str
) -> None:
    service = kserve(ModelSpec("sklearn", version, protocol=protocol))
    shuffled = data.draw(st.permutations(found))
    predictor = service.components["predictor"]
    one = select_runtime(service, predictor, catalogue(*found))
    assert one == select_runtime(service, predictor, catalogue(*shuffled))
    assert all(candidate.reason for candidate in one.candidates)
    accepted = [candidate.accepted for candidate in one.candidates]
    assert accepted == sorted(accepted, reverse=True)
