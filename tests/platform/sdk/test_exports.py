"""What `import pilotlight` brings, and what it costs."""

import ast
import inspect
import subprocess
import sys

import pytest

import pilotlight
import pilotlight.sdk.verbs


def modules_after(statement: str) -> set[str]:
    code = f"import sys; before = set(sys.modules); {statement}; print(*(set(sys.modules) - before))"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


def test_the_package_alone_imports_nothing() -> None:
    assert modules_after("import pilotlight") == {"pilotlight"}


def test_a_decorated_model_costs_a_predictor_no_library() -> None:
    loaded = {name.partition(".")[0] for name in modules_after("import pilotlight; pilotlight.model")}
    assert not loaded - {"pilotlight"} - sys.stdlib_module_names
    assert not loaded & {"dataclasses", "inspect", "asyncio"}


@pytest.mark.parametrize("name", pilotlight.__all__)
def test_every_name_is_there(name: str) -> None:
    assert getattr(pilotlight, name) is not None
    assert name in dir(pilotlight)


def test_type_checkers_see_the_same_names() -> None:
    with open(pilotlight.__file__) as file:
        tree = ast.parse(file.read())
    typed = {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert {"__version__", *typed - {"import_module"}} == set(pilotlight.__all__)


def test_packages_do_not_hide_a_verb() -> None:
    import platformctl.commands.service.canary
    import platformctl.commands.service.deploy  # noqa: F401 - they import most of the control plane

    assert all(callable(getattr(pilotlight, name)) for name in pilotlight.__all__ if name != "__version__")


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'deployed'"):
        _ = pilotlight.deployed  # type: ignore[attr-defined]


def test_help_names_every_option() -> None:
    assert {"min_replicas", "sets", "target", "timeout"} < set(inspect.signature(pilotlight.deploy).parameters)
    assert {"percent", "steps", "check", "progress"} < set(inspect.signature(pilotlight.canary).parameters)
    for client in (pilotlight.Client, pilotlight.AsyncClient):
        assert [*inspect.signature(client.infer).parameters][:3] == ["self", "model", "inputs"]
    verbs = [each for each in vars(pilotlight.sdk.verbs).values() if inspect.isfunction(each)]
    assert not [each for each in verbs if "Unpack" in str(inspect.signature(each))]
