import pytest

from pilotlight_predictor.backends.torch.forward_signature import Argument, bind, name_outputs, rename_outputs
from pilotlight_predictor.core.tensors import TensorSpec
from pilotlight_predictor.errors import LoadFailed

IDS_MASK = [Argument("ids"), Argument("mask"), Argument("bias", required=False)]


def called(names: list[str], arguments: list[Argument] = IDS_MASK, **values: int) -> tuple[tuple, dict]:
    given = values or {name: place for place, name in enumerate(names)}
    return bind(arguments, names).call(lambda *args, **kwargs: (args, kwargs), given)


def test_names_of_arguments_bind_whatever_their_order() -> None:
    assert called(["mask", "ids"]) == ((1, 0), {})


def test_numbered_names_bind_by_number() -> None:
    assert called(["INPUT__1", "INPUT__0"]) == ((1, 0), {})


def test_other_names_bind_in_the_order_of_the_configuration() -> None:
    assert called(["tokens", "attention"]) == ((0, 1), {})


def test_an_argument_behind_one_left_out_is_given_by_keyword() -> None:
    arguments = [Argument("x"), Argument("a", required=False), Argument("b", required=False)]
    assert called(["x", "b"], arguments) == ((0,), {"b": 1})


def test_keyword_only_arguments_are_given_by_keyword() -> None:
    arguments = [Argument("x"), Argument("scale", keyword_only=True)]
    assert called(["INPUT__0", "INPUT__1"], arguments) == ((0,), {"scale": 1})


def test_an_optional_input_that_a_request_leaves_out_is_not_passed() -> None:
    arguments = [Argument("x"), Argument("scale", keyword_only=True, required=False)]
    assert called(["x", "scale"], arguments, x=5) == ((5,), {})


def test_a_dict_or_a_list_is_given_whole() -> None:
    assert called(["a", "b"], [Argument("data", "dict")]) == (({"a": 0, "b": 1},), {})
    assert called(["INPUT__1", "INPUT__0"], [Argument("data", "list")]) == (([1, 0],), {})


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["a", "b", "c", "d"], r"lists 4 inputs \(a, b, c, d\), but the model's forward takes 3 \(ids, mask, bias\)"),
        (["ids"], "forward needs mask, but the configuration lists only ids"),
    ],
)
def test_a_configuration_that_cannot_be_bound_is_refused(names: list[str], message: str) -> None:
    with pytest.raises(LoadFailed, match=message):
        bind(IDS_MASK, names)


@pytest.mark.parametrize(
    ("result", "names", "expected"),
    [
        ("t", [], {"OUTPUT__0": "t"}),
        ("t", ["y"], {"y": "t"}),
        (("a", "b"), ["OUTPUT__1", "OUTPUT__0"], {"OUTPUT__1": "b", "OUTPUT__0": "a"}),
        (("a", "b"), ["OUTPUT__1"], {"OUTPUT__1": "b"}),
        (["a", ("h", "c")], ["y", "hidden", "cell"], {"y": "a", "hidden": "h", "cell": "c"}),
        ({"p": "a", "q": "b"}, ["q"], {"q": "b"}),
        ({"p": "a", "q": "b"}, [], {"p": "a", "q": "b"}),
        ({"p": "a", "q": "b"}, ["first", "second"], {"first": "a", "second": "b"}),
    ],
)
def test_results_are_named(result: object, names: list[str], expected: dict[str, str]) -> None:
    assert name_outputs(result, names) == expected


def test_too_few_results_are_told() -> None:
    with pytest.raises(TypeError, match="returned 1 tensors, but the configuration lists y, z"):
        name_outputs("t", ["y", "z"])


def test_declared_outputs_take_the_configured_names() -> None:
    found = [TensorSpec("OUTPUT__0", "FP32", (-1, 3)), TensorSpec("OUTPUT__1", "INT64", (-1,))]
    assert [spec.name for spec in rename_outputs(found, ["probs", "label"])] == ["probs", "label"]
    assert rename_outputs(found, ["OUTPUT__1"]) == found
    with pytest.raises(LoadFailed, match="a, b, c, but the model file has 2: OUTPUT__0, OUTPUT__1"):
        rename_outputs(found, ["a", "b", "c"])
