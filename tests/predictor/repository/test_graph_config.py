"""`optimization.cuda` of a configuration: what is read, what is refused and where, and what has no effect."""

import pytest

from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.repository.config_reader import config_from_pbtxt
from pilotlight_predictor.repository.model_config import GraphSpec, ModelConfig
from pilotlight_predictor.repository.unsupported_fields import ignored_fields

MODEL = """max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""


def read(cuda: str, model: str = MODEL) -> ModelConfig:
    return config_from_pbtxt(f"{model}optimization {{ cuda {{ {cuda} }} }}", "m/config.pbtxt")


def test_graphs_are_off_unless_asked_for() -> None:
    assert config_from_pbtxt(MODEL, "m/config.pbtxt").cuda_graphs is None
    assert read("graphs: false").cuda_graphs is None
    assert read("graphs: true").cuda_graphs == ()


def test_graph_specs_are_read() -> None:
    spec = 'batch_size: 4 graph_lower_bound { batch_size: 2 } input { key: "x" value { dim: [ 16 ] } }'
    found = read(f"graphs: true graph_spec [ {{ {spec} }}, {{ batch_size: 8 }} ]").cuda_graphs
    assert found == (GraphSpec(4, 2, {"x": (16,)}), GraphSpec(8))
    whole = MODEL.replace("8", "0").replace("-1", "4")
    assert read("graphs: true graph_spec [ { } ]", whole).cuda_graphs == (GraphSpec(0),)


@pytest.mark.parametrize(
    ("cuda", "says"),
    [
        ("graph_spec [ { batch_size: 1 } ]", "graph_spec has no effect without graphs: true; add that, or remove it"),
        (
            "graph_spec [ { batch_size: 9 } ]",
            "graph_spec[0].batch_size = 9, must be from 1 to max_batch_size, which is 8",
        ),
        ("graph_spec [ { } ]", "graph_spec[0].batch_size = 0, must be from 1 to max_batch_size, which is 8"),
        (
            "graph_spec [ { batch_size: 2 graph_lower_bound { batch_size: 3 } } ]",
            "graph_lower_bound.batch_size = 3, must be from 1 to the graph's batch_size, which is 2",
        ),
        (
            'graph_spec [ { batch_size: 2 graph_lower_bound { input { key: "x" value { dim: 1 } } } } ]',
            "graph_lower_bound.input is not supported: a graph has the dims that it was captured with; remove it",
        ),
        (
            'graph_spec [ { batch_size: 2 input { key: "z" value { dim: 1 } } } ]',
            "graph_spec[0].input.z is for 'z', which is not an input; known: x",
        ),
        (
            'graph_spec [ { batch_size: 2 input { key: "x" value { dim: -1 } } } ]',
            "graph_spec[0].input.x.dim[0] = -1, must be 1 or more",
        ),
    ],
    ids=["off", "too large", "no size", "bound above size", "dims in a bound", "no such input", "dims that vary"],
)
def test_what_contradicts_is_refused_with_its_place(cuda: str, says: str) -> None:
    with pytest.raises(LoadFailed) as failure:
        read(cuda if "no effect" in says else f"graphs: true {cuda}")
    assert says in str(failure.value)
    assert str(failure.value).startswith("m/config.pbtxt:4:")


def test_graphs_have_an_effect_where_the_backend_captures_them() -> None:
    config = read("graphs: true busy_wait_events: true")
    assert ignored_fields(config, graphs=True) == ["optimization.cuda.busy_wait_events"]
    assert ignored_fields(config) == ["optimization.cuda"]
