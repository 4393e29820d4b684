"""Every example: it runs on one machine, or it says why not."""

from pathlib import Path

import pytest

from pilotlight.errors import PlatformError
from pilotlight.release.plan_and_render import Sources, plan_all
from pilotlight.targets.local.manifests.interpret import interpret

EXAMPLES = Path(__file__).parents[5] / "examples" / "services"
RUN = {
    "canary": ["raw", "raw"],
    "deepseek-disaggregated": ["raw", "raw", "raw"],
    "flowers-graph": ["serverless"],
    "iris": ["serverless"],
    "iris-latency": ["raw"],
    "iris-wake": ["raw"],
    "job-stateful": ["stateful"],
    "llama-chat": ["raw"],
    "qwen-llm": ["raw", "raw"],
}
FOREIGN = "only the Pilotlight predictor and engines (vLLM, SGLang, llama.cpp) run without containers"
REFUSED = {
    "deepseek-multi-node": ["LeaderWorkerSet deepseek-chat-engine: needs several nodes; use --target kubernetes"],
    "flowers-sklearn": ["image kserve/sklearnserver", FOREIGN],
}


def manifests(name: str) -> list[dict[str, object]]:
    planned = plan_all(Sources([str(EXAMPLES / f"{name}.yaml")]))
    return [dict(manifest.document) for manifest in planned.manifests()]


def test_every_example_is_judged() -> None:
    assert {file.stem for file in EXAMPLES.glob("*.yaml")} == {*RUN, *REFUSED}


@pytest.mark.parametrize("name", RUN)
def test_an_example_runs(name: str) -> None:
    spec = interpret(manifests(name))
    assert [workload.mode for workload in spec.workloads] == RUN[name]
    assert sum(weight for _, weight in spec.entry) == 100
    assert all(workload.revision.container.readiness for workload in spec.workloads)


@pytest.mark.parametrize("name", REFUSED)
def test_an_example_is_refused_with_the_reason(name: str) -> None:
    with pytest.raises(PlatformError) as raised:
        interpret(manifests(name))
    assert all(part in str(raised.value) for part in REFUSED[name]), str(raised.value)
