"""Manifests that are short and take long, or much memory: of the console, and of authors at the controller.

While a regular expression is matched no other thread of a process runs.
"""

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.security
MAX_BYTES = 256 << 10  # of a manifest from the console
HEAD = "apiVersion: serving.kserve.io/v1beta1\nkind: InferenceService\nmetadata: {name: iris%s}\nspec:\n"
KEDA = ", annotations: {serving.kserve.io/deploymentMode: RawDeployment, serving.kserve.io/autoscalerClass: keda}"
MODEL = "  predictor:\n    model: {modelFormat: {name: onnx}, storageUri: s3://models/iris}\n"
METRIC = "    autoScaling: {metrics: [{type: External, external: {metric: {backend: prometheus, query: %s}, %s}}]}\n"
TARGET = "target: {type: Value, value: '1'}"
GRAPH = "apiVersion: serving.kserve.io/v1alpha1\nkind: InferenceGraph\nmetadata: {name: graph}\nspec:\n  nodes:\n"
RUNTIME = (
    "---\napiVersion: serving.kserve.io/v1alpha1\nkind: ServingRuntime\nmetadata: {name: own}\n"
    "spec: {supportedModelFormats: [{name: onnx}], containers: [{name: kserve-container, image: x, args: ['%s']}]}\n"
)


def canary(check: str) -> str:
    return HEAD % f", annotations: {{pilotlight.dev/canary: 'check: [\"{check}\"]'}}" + MODEL


def placeholders(text: str) -> str:
    return HEAD % "" + MODEL.replace("storageUri", "runtime: own, storageUri") + RUNTIME % text


BOMBS = {
    "aliases of a long text": HEAD % "" + MODEL.replace("}\n", f", args: [&a {'x' * 100_000}, {'*a,' * 40_000}]}}\n"),
    "a long key above many values": HEAD % "" + f"  ? {'k' * 100_000}\n  : [{'1,' * 60_000}]\n",
    "nested keys above many values": HEAD % "" + f"  {('{' + 'k' * 900 + ': ') * 80}[{'1,' * 60_000}]{'}' * 80}\n",
    "a long key above many problems": GRAPH + f"    ? {'k' * 100_000}\n    : {{steps: [{'{a: 1},' * 15_000}]}}\n",
    "aliases as keys that are given twice": f"a: &a {'x' * 100_000}\nb: {{{'*a : 1,' * 15_000}}}\n",
    "thousands of unknown fields": HEAD % "" + f"  predictor: {{{','.join(f'm{n}: 1' for n in range(25_000))}}}\n",
    "thousands of steps to missing nodes": GRAPH
    + "".join(f"    a{n}: {{routerType: Sequence, steps: [{{nodeName: b{n}}}]}}\n" for n in range(4_000)),
    "a bound of many digits": canary("p99_ms<" + "1" * 100_000 + "x"),
    "a check of many blanks": canary("p99_ms<b" + " " * 100_000 + "\\nx"),
    "a query of one long word": HEAD % KEDA + MODEL + METRIC % ("sum" + "a" * 100_000, TARGET),
    "a query of unclosed texts": HEAD % KEDA + MODEL + METRIC % ("'" + '"\\' * 50_000 + "'", TARGET),
    "a placeholder that does not end": placeholders("{{" + " " * 3_000),
    "many placeholders that do not end": placeholders("{{" * 50_000),
}
# As the control process and the controller do it. Together they take a few seconds.
PLAN = """
import json, resource, sys
from pilotlight.plan.types import Capabilities
from pilotlight.release.apply import ReleaseRequest, prepare
from pilotlight.release.plan_and_render import Sources, read
from pilotlight.spec.problems import InvalidDocument, Problems
from pilotlight.spec.yaml_nodes import parse

resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
resource.setrlimit(resource.RLIMIT_CPU, (15, 15))
for bomb, text in json.load(sys.stdin).items():
    print(bomb, end=": ", flush=True)
    problems = Problems()
    try:
        nodes = parse(text, "manifest", problems)
        if problems.errors:
            raise InvalidDocument(problems.items)
        prepare(ReleaseRequest(read(Sources((), objects=nodes)), Capabilities()), None)
        print("planned", flush=True)
    except InvalidDocument as error:
        print("invalid" if len(str(error)) < 10_000_000 else "long", flush=True)
"""


def test_no_short_manifest_takes_long_or_much_memory() -> None:
    assert max(map(len, BOMBS.values())) < MAX_BYTES
    done = subprocess.run(
        [sys.executable, "-c", PLAN], input=json.dumps(BOMBS), capture_output=True, text=True, timeout=120, check=False
    )
    verdicts = dict(line.partition(": ")[::2] for line in done.stdout.splitlines())
    assert verdicts.keys() == BOMBS.keys(), done.stdout[-500:] + done.stderr[-1000:]
    assert set(verdicts.values()) <= {"planned", "invalid"}, verdicts
