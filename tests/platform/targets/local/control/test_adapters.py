"""Adapters of running replicas, loaded into a stand-in of vLLM by the calls that real ones have."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

from msgspec import structs
from tests.engines.vllm_engine import VllmEngine
from tests.eventually import eventually_async
from tests.platform.targets.local.runs import replica, revision, running, service, workload

from pilotlight.k8s.adapters import Adapter, engine_name
from pilotlight.targets.local.control.adapters import AdapterLoader
from pilotlight.targets.local.control.service_state import ServiceRun
from pilotlight.targets.local.home_directory import Home
from pilotlight.targets.local.store.store import EventRecorder, Store


def adapter(name: str, folder: Path, **config: object) -> Adapter:
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return Adapter(name, engine_name(name, str(folder), ""), str(folder), dynamic=True)


def test_replicas_get_the_adapters_of_their_service_and_names_change_once_all_have_the_new_one(tmp_path: Path) -> None:
    first, second = adapter("law", tmp_path / "first"), adapter("law", tmp_path / "second")
    bad = adapter("bad", tmp_path / "bad", modules_to_save=["lm_head"])
    home = Home(tmp_path / "home")
    home.create()
    home.token.write_text("key of the control API")
    store = Store.open(home.database)

    def deploy(run: ServiceRun, *adapters: Adapter) -> None:
        run.spec = replace(run.spec, adapters=adapters)

    async def case() -> None:
        engines = [VllmEngine(name) for name in ("one", "two")]
        for each in engines:
            each.load_paths = ("/v1/load_lora_adapter", "/v1/unload_lora_adapter")
        async with engines[0].serving(), engines[1].serving():
            run = running(service(workload(revision()), adapters=(first,)))
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
            assert engines[0].adapters == {first.model: first.uri}
            assert names("one") == [first.model]
            assert engines[0].credentials == {""}, "an engine learns no key that it has no right to"
            deploy(run, second, bad)
            assert names("one") == [first.model]  # until the new one is there
            assert loader.has_adapters(run, replicas[0])
            reconcile(run)
            await eventually_async(lambda: engines[0].adapters == {second.model: second.uri}, "the change")
            assert names("one") == [second.model]
            failed = {
                each.name: each.reason for each in loader.status(run, known) if each.model_state == "FailedToLoad"
            }
            assert "modules_to_save is not supported" in failed[bad.model]
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
        engine = VllmEngine("one")
        engine.load_paths = ("/v1/load_lora_adapter", "/v1/unload_lora_adapter")
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
