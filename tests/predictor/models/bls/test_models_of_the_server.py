"""What a Triton model says beside its tensors (parameters, metrics), and models that bring and remove others."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from tests.predictor.models.bls.conftest import Stream, numbers_in
from tests.predictor.models.bls.triton_models import DECOUPLED, IN, OUT, config, tensor, write_model
from tests.serving import RunningServer
from tritonclient.utils import InferenceServerException

METERED = """
class TritonPythonModel:
    def initialize(self, args):
        kinds = pb_utils.MetricFamily
        self.asked = kinds("asked_times", "Requests", kinds.COUNTER).Metric({"who": 'a "b"'})
        self.last = kinds("last_number", "The last number", kinds.GAUGE).Metric()
        self.sizes = kinds("number_sizes", "Numbers", kinds.HISTOGRAM).Metric(labels={}, buckets=[1, 10, 100.5])

    def execute(self, requests):
        responses = []
        for request in requests:
            numbers = tensor_of(request, "IN")
            self.asked.increment(2)
            self.last.set(float(numbers[0]))
            self.sizes.observe(numbers[0])
            out = pb_utils.Tensor("OUT", numbers)
            told = {"who": "metered", "exact": True, "rows": len(numbers), "share": 0.5, "asked": self.asked.value()}
            responses.append(pb_utils.InferenceResponse([out], parameters=told))
        return responses
"""
KEPT = METERED.replace("self.asked", "type(self).asked").replace("asked_times", "kept_times")
PARTS = """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender, numbers = request.get_response_sender(), tensor_of(request, "IN")
            for part in range(2):
                out = pb_utils.Tensor("OUT", numbers)
                sender.send(pb_utils.InferenceResponse([out], parameters={"part": part}))
            sender.send(flags=FINAL)
"""
TOLD_LAST = "pb_utils.InferenceResponse([], parameters={'end': True}), flags=FINAL"
ASKS_METERED = """
class TritonPythonModel:
    def execute(self, requests):
        asked = [pb_utils.Tensor("IN", tensor_of(requests[0], "IN"))]
        told = pb_utils.InferenceRequest(model_name="metered", requested_output_names=["OUT"], inputs=asked).exec()
        return [pb_utils.InferenceResponse(told.output_tensors(), parameters=told.parameters())]
"""
KEEPER = """
INLINE = b'''
import numpy as np
OUTPUTS = {"OUT": ("INT32", [1])}
INPUTS = {"IN": ("INT32", [1])}
def predict(IN):
    return IN * 7
'''
CONFIG = json.dumps({"name": "brought", "backend": "python"})

class TritonPythonModel:
    def execute(self, requests):
        verb, _, rest = tensor_of(requests[0], "DO")[0].decode().partition(" ")
        if verb == "inline":
            pb_utils.load_model("brought", files={"file:1/model.py": INLINE}, config=CONFIG)
        elif verb == "files":
            pb_utils.load_model("brought", files={rest: b"x"})
        elif verb == "outside":
            pb_utils.load_model(rest, CONFIG, {"file:1/model.py": INLINE})
        elif verb == "load":
            pb_utils.load_model(rest, "")
        elif verb == "unload":
            pb_utils.unload_model(rest)
        ready = pb_utils.is_model_ready(*rest.split()) if rest and verb not in ("files", "outside") else False
        return [response_of(SAID=np.array([str(ready).encode()], np.object_))]
"""
BRINGS = """
class TritonPythonModel:
    def initialize(self, args):
        pb_utils.load_model(OTHER)

    def execute(self, requests):
        return [response_of(OUT=tensor_of(request, "IN")) for request in requests]
"""
SUMMED = """
class TritonPythonModel:
    def execute(self, requests):
        sums = [tensor_of(each, "IN") + tensor_of(each, "SUM") for each in requests]
        return [pb_utils.InferenceResponse(
            [pb_utils.Tensor("OUT", each), pb_utils.Tensor("NEW", each)], parameters={"sum": int(each[0])}
        ) for each in sums]
"""
STATE = """sequence_batching { direct { } state [ {
  input_name: "SUM" output_name: "NEW" data_type: TYPE_INT32 dims: [ 1 ]
  initial_state: { data_type: TYPE_INT32 dims: [ 1 ] zero_data: true name: "zero" } } ] }"""
PLAIN = """
class TritonPythonModel:
    def execute(self, requests):
        return [response_of(OUT=tensor_of(request, "IN")) for request in requests]
"""
MODELS = {
    "metered": (METERED, config([IN], [OUT])),
    "kept": (KEPT, config([IN], [OUT], "response_cache { enable: true }")),
    "parts": (PARTS, config([IN], [OUT], DECOUPLED)),
    "ends": (PARTS.replace("flags=FINAL", TOLD_LAST), config([IN], [OUT], DECOUPLED)),
    "asks_metered": (ASKS_METERED, config([IN], [OUT])),
    "summed": (SUMMED, config([IN], [OUT], STATE)),
    "keeper": (KEEPER, config([tensor("DO", "STRING", "1")], [tensor("SAID", "STRING", "1")])),
    "plain": (PLAIN, config([IN], [OUT])),
    "brings_plain": (f"OTHER = 'plain'\n{BRINGS}", config([IN], [OUT])),
    "left": (f"OTHER = 'right'\n{BRINGS}", config([IN], [OUT])),
    "right": (f"OTHER = 'left'\n{BRINGS}", config([IN], [OUT])),
    **{f"chain_{n}": (f"OTHER = 'chain_{n + 1}'\n{BRINGS}", config([IN], [OUT])) for n in range(1, 6)},
    "chain_6": (PLAIN, config([IN], [OUT])),
    "undoes": (BRINGS.replace("load_model(OTHER)", "unload_model('undoes')"), config([IN], [OUT])),
    "part": (f"OTHER = 'whole'\n{BRINGS}", config([IN], [OUT])),
    "wrong_metric": (METERED.replace("asked_times", "nv_inference_count"), config([IN], [OUT])),
}  # fmt: skip
WHOLE = f"""
platform: "ensemble" input [ {IN} ] output [ {OUT} ] ensemble_scheduling {{ step [
  {{ model_name: "part" model_version: -1
     input_map {{ key: "IN" value: "IN" }} output_map {{ key: "OUT" value: "OUT" }} }}
] }}
"""
AT_START = ("metered", "kept", "parts", "ends", "asks_metered", "summed", "keeper")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, serve_module: Callable[..., RunningServer]) -> RunningServer:
    root = tmp_path_factory.mktemp("managed")
    for name, (source, text) in MODELS.items():
        write_model(root, name, source, text)
    (root / "whole" / "1").mkdir(parents=True)
    (root / "whole" / "config.pbtxt").write_text(WHOLE)
    flags = [word for name in AT_START for word in ("--load-model", name)]
    return serve_module(
        root,
        "--grpc-port",
        "0",
        "--model-control-mode",
        "explicit",
        "--allow-inline-files",
        "--response-cache-bytes",
        "100000",
        *flags,
    )


@pytest.fixture(scope="module")
def client(server: RunningServer) -> triton.InferenceServerClient:
    return triton.InferenceServerClient(f"127.0.0.1:{server.wait_for_event('grpc.listening')['grpc_port']}")


def do(client: triton.InferenceServerClient, what: str) -> str:
    given = triton.InferInput("DO", [1], "BYTES")
    given.set_data_from_numpy(np.array([what.encode()], np.object_))
    return str(client.infer("keeper", [given], client_timeout=60).as_numpy("SAID")[0].decode())


def told(response: Any) -> dict[str, Any]:
    return {name: getattr(each, each.WhichOneof("parameter_choice")) for name, each in response.parameters.items()}


def ask(server: RunningServer, model: str, number: int) -> dict[str, Any]:
    body = {"inputs": [{"name": "IN", "shape": [1], "datatype": "INT32", "data": [number]}]}
    answer = server.post(f"/v2/models/{model}/infer", body)
    assert answer.status == 200, answer.body
    document: dict[str, Any] = answer.json()
    return document


def scraped(server: RunningServer) -> list[str]:
    return server.get("/metrics").body.decode().splitlines()


def test_parameters_of_a_response_reach_clients_of_http_and_grpc(
    server: RunningServer, client: triton.InferenceServerClient
) -> None:
    expected = {"who": "metered", "exact": True, "rows": 1, "share": 0.5}
    over_http = ask(server, "metered", 5)
    assert over_http["outputs"][0]["data"] == [5]
    assert over_http["parameters"].items() >= expected.items()
    over_grpc = client.infer("metered", [numbers_in([5])]).get_response()
    assert told(over_grpc).items() >= expected.items()


def test_a_model_hears_and_hands_on_the_parameters_of_another(server: RunningServer) -> None:
    assert ask(server, "asks_metered", 3)["parameters"]["who"] == "metered"


def test_an_answer_that_was_kept_has_its_parameters_too(server: RunningServer) -> None:
    first, second = ask(server, "kept", 3)["parameters"], ask(server, "kept", 3)["parameters"]
    assert first == second  # also how often it was asked: the second time it was not


def test_an_answer_of_a_model_with_a_state_has_its_parameters(client: triton.InferenceServerClient) -> None:
    for number, total in ((2, 2), (3, 5)):
        asked = {"sequence_id": 7, "sequence_start": number == 2, "sequence_end": number == 3}
        assert told(client.infer("summed", [numbers_in([number])], **asked).get_response()) == {"sum": total}


def test_each_part_of_an_answer_has_its_own(client: triton.InferenceServerClient) -> None:
    stream = Stream(client)
    try:
        stream.ask("parts", [4], enable_empty_final_response=True)
        answers = stream.until_final()
    finally:
        stream.close()
    assert [told(each).get("part") for each in answers] == [0, 1, None]


def test_an_end_that_says_something_needs_no_tensors(
    server: RunningServer, client: triton.InferenceServerClient
) -> None:
    stream = Stream(client)
    try:
        stream.ask("ends", [4])
        answers = stream.until_final()
    finally:
        stream.close()
    assert told(answers[-1]) == {"end": True, "triton_final_response": True}
    events = server.post("/v2/models/ends/generate_stream", {"IN": [4]}).body.decode().strip().split("\n\n")
    assert [json.loads(event.removeprefix("data: ")).get("end") for event in events] == [None, None, True]


def test_what_a_model_counts_is_scraped(server: RunningServer) -> None:
    before = [line for line in scraped(server) if line.startswith('asked_times{who="a \\"b\\""}')]
    ask(server, "metered", 50)
    lines = scraped(server)
    (after,) = [line for line in lines if line.startswith('asked_times{who="a \\"b\\""}')]
    assert float(after.split()[-1]) == float(before[0].split()[-1]) + 2
    assert "# HELP asked_times Requests" in lines
    assert {"# TYPE asked_times counter", "# TYPE last_number gauge", "# TYPE number_sizes histogram"} <= set(lines)
    assert "last_number 50.0" in lines
    assert any(line.startswith('number_sizes_bucket{le="100.5"} ') for line in lines)


def test_metrics_go_with_the_model_that_made_them(server: RunningServer, client: triton.InferenceServerClient) -> None:
    """Also those that something else of it holds: a class, which nobody collects after the start."""
    client.unload_model("kept")
    server.wait_until(lambda: not any("kept_times" in line for line in scraped(server)), "its metrics are gone")
    client.load_model("kept")
    assert any("kept_times" in line for line in scraped(server))
    assert any(line.startswith("asked_times") for line in scraped(server))


def test_a_metric_with_a_name_of_the_servers_own_is_refused(client: triton.InferenceServerClient) -> None:
    with pytest.raises(InferenceServerException, match="nv_inference_count, which is already in use"):
        client.load_model("wrong_metric")


def test_a_model_loads_and_unloads_another(server: RunningServer, client: triton.InferenceServerClient) -> None:
    assert do(client, "ready plain") == "False"
    assert do(client, "load plain") == "True"
    assert ask(server, "plain", 9)["outputs"][0]["data"] == [9]
    assert (do(client, "ready plain 1"), do(client, "ready plain 2")) == ("True", "False")
    assert do(client, "unload plain") == "False"
    assert not client.is_model_ready("plain")


def test_a_model_brings_another_from_bytes(server: RunningServer, client: triton.InferenceServerClient) -> None:
    do(client, "inline")
    assert ask(server, "brought", 6)["outputs"][0]["data"] == [42]
    do(client, "unload brought")


@pytest.mark.parametrize(
    ("what", "why"),
    [
        ("load nobody", "failed to load 'nobody': it is in none of the model repositories"),
        ("unload nobody", "failed to unload 'nobody': unknown model"),
        ("files file:1/model.py", "parameters.config is required with files"),
        ("files file:../../evil.py", "parameters['file:../../evil.py'] must be a path of the form <version>/<file>"),
        ("outside ../../evil", "model name '../../evil' is not valid: it must be one path segment"),
        ("ready plain new", "model_version = 'new', must be a number in quotes, or empty"),
    ],
)
def test_what_cannot_be_done_is_told(client: triton.InferenceServerClient, what: str, why: str) -> None:
    with pytest.raises(InferenceServerException) as caught:
        do(client, what)
    assert why in caught.value.message()


def test_a_model_brings_another_while_it_is_loaded(client: triton.InferenceServerClient) -> None:
    client.load_model("brings_plain")
    assert client.is_model_ready("plain")
    client.unload_model("plain")


def test_more_of_them_than_are_loaded_at_a_time_do_not_wait_for_each_other(
    server: RunningServer, client: triton.InferenceServerClient
) -> None:
    """Each holds one of the four places for loads while it waits for the next."""
    client.load_model("chain_1", client_timeout=60)
    assert ask(server, "chain_6", 2)["outputs"][0]["data"] == [2]


def test_a_model_that_would_unload_itself_while_it_is_loaded_is_refused(client: triton.InferenceServerClient) -> None:
    with pytest.raises(InferenceServerException, match="'undoes' is loading and waits for this load"):
        client.load_model("undoes", client_timeout=60)


def test_a_part_that_brings_its_own_ensemble_is_loaded(client: triton.InferenceServerClient) -> None:
    client.load_model("part", client_timeout=60)
    assert client.is_model_ready("part")


def test_two_that_bring_each_other_do_not_wait_for_ever(client: triton.InferenceServerClient) -> None:
    with pytest.raises(InferenceServerException, match="'left' is loading and waits for this load"):
        client.load_model("left", client_timeout=60)


def test_one_of_several_workers_looks_but_changes_nothing(tmp_path: Path, serve: Callable[..., RunningServer]) -> None:
    for name in ("keeper", "plain"):
        write_model(tmp_path, name, *MODELS[name])
    server = serve(tmp_path, "--workers", "2", "--model-control-mode", "explicit", "--load-model", "keeper")
    for what, status, said in (("ready plain", 200, "False"), ("load plain", 500, "one of several --workers cannot")):
        body = {"inputs": [{"name": "DO", "shape": [1], "datatype": "BYTES", "data": [what]}]}
        answer = server.post("/v2/models/keeper/infer", body)
        assert (answer.status, said in answer.body.decode()) == (status, True), answer.body


def test_models_that_are_fixed_at_start_stay(tmp_path: Path, serve: Callable[..., RunningServer]) -> None:
    for name in ("keeper", "plain"):
        write_model(tmp_path, name, *MODELS[name])
    server = serve(tmp_path)
    body = {"inputs": [{"name": "DO", "shape": [1], "datatype": "BYTES", "data": ["unload plain"]}]}
    refused = server.post("/v2/models/keeper/infer", body)
    assert refused.status == 500
    assert "use --model-control-mode=explicit" in refused.error
