"""What a cold start pays before it listens: only the standard library and our own light modules."""

import subprocess
import sys

import pytest

HEAVY = (
    "aiohttp", "click", "httpx", "huggingface_hub", "jinja2", "kserve", "msgspec", "numpy", "obstore", "onnxruntime",
    "opentelemetry", "orjson", "tensorflow", "torch", "yaml",
)  # fmt: skip
START = ("pilotlight_predictor.__main__", "pilotlight_predictor.config", "pilotlight_predictor.bootstrap.startup")


def loaded_by(*names: str) -> set[str]:
    """The top-level packages in memory after a fresh interpreter imported the modules."""
    code = f"import sys, {', '.join(names)}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {name.split(".")[0] for name in done.stdout.split()}


def test_listening_needs_nothing_heavy() -> None:
    assert not loaded_by(*START) & set(HEAVY)


def test_the_table_of_backends_costs_no_runtime() -> None:
    runtimes = {"kserve", "onnxruntime", "tensorflow", "tensorrt", "torch"}
    assert (
        not loaded_by("pilotlight_predictor.bootstrap.application", "pilotlight_predictor.core.backend_table")
        & runtimes
    )


def test_codecs_of_the_trtis_protocol_are_imported_with_its_first_request() -> None:
    code = (
        "import sys; from pilotlight_predictor.protocols import serving_protocols;"
        "serving_protocols(); print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pilotlight_predictor.protocols.trtis.routes" in done.stdout.split()
    assert not {
        name for name in done.stdout.split() if "trtis.handlers" in name or "text_protobuf" in name or "pbtxt" in name
    }


def test_a_start_imports_no_class_whose_code_is_generated_at_import() -> None:
    code = (
        "import sys, pilotlight_predictor.bootstrap.application;"
        "from pilotlight_predictor.protocols import startup_protocols;"
        "startup_protocols();"
        "classes = {x for m in [*sys.modules.values()] if m.__name__.startswith('pilotlight') for x in vars(m).values()"
        " if hasattr(x, '__dataclass_params__') and isinstance(x, type)};"
        "print(*(c.__qualname__ for c in classes if c.__dataclass_params__.init))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []  # each costs half a millisecond of every start


def test_serving_plain_requests_needs_no_aiohttp() -> None:
    assert "aiohttp" not in loaded_by("pilotlight_predictor.bootstrap.application")


@pytest.mark.parametrize("name", ["pilotlight.contract", "pilotlight.wire.http1", "pilotlight.wire.prometheus_text"])
def test_what_both_sides_share_loads_nothing_else_of_ours(name: str) -> None:
    assert not loaded_by(name) & {"pilotlight_predictor", "platformctl", *HEAVY}


def test_parking_comes_only_to_servers_that_park() -> None:
    code = "import sys, pilotlight_predictor.bootstrap.application; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {name for name in done.stdout.split() if name.startswith("pilotlight_predictor.models.parking.")}


def test_an_api_over_a_cluster_loads_no_control_process() -> None:
    code = (
        "import sys, pilotlight.control_plane.api_server;"
        "from pilotlight.microservices.jobs.target_service import TargetService;"
        "import pilotlight.targets.kubernetes.target; TargetService('kubernetes', {}); print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pilotlight.targets.kubernetes.target" in done.stdout.split()
    assert "pilotlight.targets.local.control.service_operations" not in done.stdout.split()
