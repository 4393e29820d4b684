"""Engines that run without containers: which container means one of them, and which program of this machine it is."""

from pathlib import Path

import pytest
from tests.doc_pages import page_section
from tests.engines.installed import install

from pilotlight.catalogue.catalogue import builtin
from pilotlight.catalogue.engine_programs import engine_command, engine_of, engines, missing_program
from pilotlight.catalogue.runtime_score import RuntimeHost
from pilotlight.targets.local.installed_engines import Installed, installed_engines, installed_program, search_path

VLLM, SGLANG, LLAMA_CPP = engines()
PAGE = page_section("docs/concepts/platform.md", "Services and revisions")


@pytest.mark.parametrize(
    ("image", "command", "args", "engine", "rest"),
    [
        ("docker.io/vllm/vllm-openai:v0.20.1", (), ("/m",), "vLLM", ("/m",)),
        ("of/mine", ("vllm", "serve"), ("/m",), "vLLM", ("/m",)),
        ("of/mine", ("/opt/bin/python3.12", "-m", "sglang.launch_server", "--x"), ("/m",), "SGLang", ("--x", "/m")),
        ("ghcr.io/ggml-org/llama.cpp@sha256:00", (), ("-m", "/m"), "llama.cpp", ("-m", "/m")),
        ("of/mine", ("/app/llama-server",), (), "llama.cpp", ()),
        ("of/mine", ("vllm",), ("serve", "/m"), "vLLM", ("/m",)),
    ],
)
def test_a_container_is_an_engine_by_its_command_else_by_its_image(
    image: str, command: tuple[str, ...], args: tuple[str, ...], engine: str, rest: tuple[str, ...]
) -> None:
    found = engine_command(image, command, args)
    assert found is not None
    assert (found.engine.name, found.args) == (engine, rest)


@pytest.mark.parametrize(
    ("image", "command"),
    [
        ("vllm/vllm-openai", ("bash", "-c", "vllm serve /m")),
        ("lmsysorg/sglang:v1", ()),  # its image starts no server by itself
        ("evil/not-vllm/vllm-openai-x", ()),
        ("of/mine", ("python", "-m", "http.server")),
        ("of/mine", ()),
    ],
)
def test_a_shell_or_another_program_is_no_engine(image: str, command: tuple[str, ...]) -> None:
    assert engine_command(image, command) is None


def test_runtimes_of_the_catalogue_name_their_engine() -> None:
    found = {runtime.name: engine_of(runtime) for runtime in builtin().runtimes}
    assert {name for name, engine in found.items() if engine == "llama.cpp"} == {"llama-cpp"}
    assert {"kserve-vllmserver", "vllm-text-generation", "vllm-text-embedding"} <= {
        name for name, engine in found.items() if engine == "vLLM"
    }
    assert found["sglang-text-generation"] == "SGLang"
    assert not found["pilotlight"]
    assert not found["kserve-sklearnserver"]


def test_programs_are_found_in_the_folders_of_the_setting_before_path(tmp_path: Path) -> None:
    first, second = (install(tmp_path / name, "vllm", "sglang") for name in ("first", "second"))
    environ = {"PILOTLIGHT_ENGINE_PATH": f"{tmp_path}:{first}", "PATH": second}
    assert installed_engines(environ) == {"vLLM", "SGLang"}
    program = installed_program(VLLM, ("vllm", "serve"), environ)
    assert program is not None
    assert program.argv == (f"{first}/vllm", "serve")
    module = installed_program(SGLANG, ("python", "-m", "sglang.launch_server"), {"PATH": second})
    assert module is not None
    assert module.argv == (f"{second}/python", "-m", "sglang.launch_server")
    assert installed_engines({"PILOTLIGHT_ENGINE_PATH": "bin", "PATH": ""}) == frozenset()
    assert installed_engines({"PILOTLIGHT_ENGINE_PATH": search_path(environ), "PATH": ""}) == {"vLLM", "SGLang"}


def test_runtimes_of_engines_are_for_this_machine_where_they_are_installed() -> None:
    (runtime,) = [each for each in builtin().runtimes if each.name == "llama-cpp"]
    assert not RuntimeHost("local", False, frozenset({"llama.cpp"})).refusal(runtime)
    assert not RuntimeHost("local", False, None).refusal(runtime)
    assert RuntimeHost("local", False, frozenset({"vLLM"})).refusal(runtime) == missing_program("llama.cpp")
    assert "only the Pilotlight predictor" in RuntimeHost("slurm", False, frozenset({"llama.cpp"})).refusal(runtime)


def test_the_python_server_of_llama_cpp_stands_for_llama_server_with_its_own_flags(tmp_path: Path) -> None:
    environ = {"PILOTLIGHT_ENGINE_PATH": install(tmp_path / "environment", "llama_cpp_python"), "PATH": ""}
    program = installed_program(LLAMA_CPP, ("llama-server",), environ)
    assert isinstance(program, Installed)
    args = program.arguments(["-m", "/m.gguf", "--ctx-size", "512", "--metrics", "--seed", "7"])
    assert args[-6:] == ["--model", "/m.gguf", "--n_ctx", "512", "--seed", "7"]
    assert args[:2] == ["--interrupt_requests", "false"]
    assert program.paths == {"/health": "/v1/models"}
    itself = installed_program(LLAMA_CPP, ("python", "-m", "llama_cpp.server"), environ)
    assert itself is not None
    assert (itself.arguments(["-m", "/m"]), itself.paths) == (["-m", "/m"], {})
    (Path(environ["PILOTLIGHT_ENGINE_PATH"]) / "llama-server").symlink_to("/bin/true")
    better = installed_program(LLAMA_CPP, ("llama-server",), environ)
    assert better is not None
    assert (better.translates, better.argv) == (False, (f"{environ['PILOTLIGHT_ENGINE_PATH']}/llama-server",))


def test_a_missing_program_is_one_sentence_with_how_to_install_it() -> None:
    assert installed_program(VLLM, ("vllm", "serve"), {"PATH": ""}) is None
    text = missing_program("vLLM")
    assert text.startswith("vLLM is not installed on this machine; pip install vllm (")
    assert "PILOTLIGHT_ENGINE_PATH" in text


def test_every_program_is_on_the_page() -> None:
    for engine in engines():
        for program in engine.programs:
            assert f"| {engine.name} | `{' '.join(program.command)}` |" in PAGE
