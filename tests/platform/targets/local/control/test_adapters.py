"""Adapters of running replicas, loaded into stand-ins of vLLM and SGLang by the calls that real ones have."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs
from tests.engines.sglang_engine import SGLangEngine
from tests.engines.vllm_engine import VllmEngine
from tests.eventually import eventually_async
from tests.platform.targets.local.runs import replica, revision, running, service, workload

from pilotlight.k8s.adapters import Adapter, engine_name
from pilotlight.targets.local.control.adapters import AdapterLoader
from pilotlight.targets.local.control.service_state import ServiceRun
from pilotlight.targets.local.home_directory import Home
from pilotlight.targets.local.store.store import EventRecorder, Store


def adapter(name: str, folder: Path, model: str = "", **config: object) -> Adapter:
    """`model` stands before the name in requests, as SGLang reads them."""
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({"r": 8, **config}))
    return Adapter(name, f"{model}{engine_name(name, str(folder), '')}", str(folder), dynamic=True)


def vllm(name: str) -> VllmEngine:
    engine = VllmEngine(name)
    engine.load_paths = ("/v1/load_lora_adapter", "/v1/unload_lora_adapter")
    return engine


def sglang(name: str) -> SGLangEngine:
    engine = SGLangEngine(name, "null")
    engine.load_paths = ("/load_lora_adapter", "/unload_lora_adapter")
    return engine


@pytest.mark.parametrize(("new_engine", "image", "base", "refusal"), [
    (vllm, "vllm/vllm-openai:v0.20.1", "", "modules_to_save is not supported"),
    (sglang, "lmsysorg/sglang:v0.5.5", "iris:", "incompatible with the current LoRA memory pool"),
])  # fmt: skip
def test_replicas_get_the_adapters_of_their_service_and_names_change_once_all_have_the_new_one(
    tmp_path: Path, new_engine: Callable[[str], VllmEngine | SGLangEngine], image: str, base: str, refusal: str
) -> None:
    first, second = (adapter("law", tmp_path / name, base) for name in ("first", "second"))
    bad = adapter("bad", tmp_path / "bad", base, modules_to_save=["lm_head"])
    home = Home(tmp_path / "home")
    home.create()
    home.token.write_text("key of the control API")
    store = Store.open(home.database)

    def deploy(run: ServiceRun, *adapters: Adapter) -> None:
        run.spec = replace(run.spec, adapters=adapters)

    async def case() -> None:
        engines = [new_engine(name) for name in ("one", "two")]
        newest = revision()
        newest = replace(newest, container=replace(newest.container, image=image))
        async with engines[0].serving(), engines[1].serving():
            run = running(service(workload(newest), adapters=(first,)))
            replicas = [structs.replace(replica(own=each.name), port=each.port) for each in engines]
            known = replicas[:1]

            def reconcile(run: ServiceRun) -> None:
                loader.reconcile(run, known)

            def names(*ids: str) -> list[str]:
                return [each.model for each in loader.routed(run, ids)]

            loader = AdapterLoader(home, EventRecorder(store), reconcile, drain_s=0.01)
            assert not loader.has_adapters(run, replicas[0])
            reconcile(run)
            await eventually_async(lambda: loader.has_adapters(run, replicas[0]), "the first adapter")
            assert engines[0].adapters == {first.model.removeprefix(base): first.uri}
            assert names("one") == [first.model]
            assert engines[0].credentials == {""}, "an engine learns no key that it has no right to"
            deploy(run, second, bad)
            assert names("one") == [first.model]  # until the new one is there
            assert loader.has_adapters(run, replicas[0])
            reconcile(run)
            changed = {second.model.removeprefix(base): second.uri}
            await eventually_async(lambda: engines[0].adapters == changed, "the change")
            assert names("one") == [second.model]
            failed = {
                each.name: each.reason for each in loader.status(run, known) if each.model_state == "FailedToLoad"
            }
            assert refusal in failed[bad.model]
            known.append(replicas[1])  # it starts later
            assert names("one", "two") == []
            reconcile(run)
            await eventually_async(lambda: names("one", "two") == [second.model], "the other replica")
            loader.close()

    asyncio.run(case())
    reasons = [each.reason for each in store.events(("default", "iris"), 0, 100)]
    assert reasons.count("AdapterLoaded") == 3
    assert "AdapterUnloaded" in reasons
    assert "AdapterFailed" in reasons
    store.close()


def test_an_adapter_that_is_used_again_is_drained_anew_before_it_is_unloaded(tmp_path: Path) -> None:
    first, second = adapter("law", tmp_path / "first"), adapter("law", tmp_path / "second")
    home = Home(tmp_path / "home")
    home.create()
    store = Store.open(home.database)
    now, changes = [0.0], list[ServiceRun]()

    async def case() -> None:
        engine = vllm("one")
        async with engine.serving():
            run = running(service(workload(revision()), adapters=(first,)))
            known = [structs.replace(replica(own=engine.name), port=engine.port)]
            loader = AdapterLoader(home, EventRecorder(store), changes.append, drain_s=30, clock=lambda: now[0])

            async def deploy(at: float, wanted: Adapter, *, works: bool = True) -> None:
                now[0], before = at, len(changes)
                run.spec = replace(run.spec, adapters=(wanted,))
                loader.reconcile(run, known)
                if works:
                    await eventually_async(lambda: len(changes) > before, f"the work at {at}")

            await deploy(0, first)
            await deploy(10, second)
            await deploy(20, first, works=False)  # rolled back; both are loaded
            await deploy(100, second)
            assert first.model in engine.adapters
            await deploy(130, second)
            assert engine.adapters == {second.model: second.uri}
            loader.close()

    asyncio.run(case())
    store.close()
