"""The routes of V2: what each answers, in bodies that both client libraries read, and what is no route."""

from urllib.parse import quote

import pytest
from tests.serving import RunningServer, json_tensor

ONE = {"inputs": [json_tensor("x", "INT32", [1], [7])]}


def test_server_health_has_the_keys_that_kserve_reads(server: RunningServer) -> None:
    live, ready = server.get("/v2/health/live"), server.get("/v2/health/ready")
    assert (live.status, live.json()) == (200, {"live": True})
    assert (ready.status, ready.json()) == (200, {"ready": True})


@pytest.mark.parametrize(
    "path", ["/v2", "/v2/health/live", "/v2/models", "/v2/models/scalar", "/v2/models/nope", "/v2/nope", "/status"]
)
def test_json_is_called_exactly_application_json(server: RunningServer, path: str) -> None:
    assert server.get(path).headers["content-type"] == "application/json"


def test_server_metadata_lists_the_extensions(server: RunningServer) -> None:
    document = server.get("/v2").json()
    assert list(document) == ["name", "version", "extensions"]
    assert {"classification", "binary_tensor_data", "model_repository", "statistics"} <= set(document["extensions"])


def test_models_are_listed_as_kserve_lists_them(server: RunningServer) -> None:
    models = server.get("/v2/models").json()["models"]
    assert {"add_sub", "echo", "scalar"} <= set(models)


def test_model_metadata_has_the_batch_dimension_in_front(server: RunningServer) -> None:
    document = server.get("/v2/models/add_sub").json()
    assert list(document) == ["name", "versions", "platform", "inputs", "outputs"]
    assert (document["name"], document["versions"], document["platform"]) == ("add_sub", ["1"], "onnxruntime_onnx")
    assert document["inputs"][0] == {"name": "a", "datatype": "FP32", "shape": [-1, 4]}


@pytest.mark.parametrize("version", [1, 2])
def test_every_model_route_exists_with_a_version(server: RunningServer, version: int) -> None:
    path = f"/v2/models/two_versions/versions/{version}"
    assert server.get(path).json()["versions"] == [str(version)]
    assert server.get(f"{path}/ready").json() == {"name": "two_versions", "ready": True}
    assert server.get(f"{path}/config").json()["name"] == "two_versions"
    assert [each["version"] for each in server.get(f"{path}/stats").json()["model_stats"]] == [str(version)]
    answer = server.post(f"{path}/infer", ONE).json()
    assert answer["model_version"] == str(version)
    assert answer["outputs"][0]["data"] == [7 if version == 1 else -7]


def test_without_a_version_the_newest_answers(server: RunningServer) -> None:
    assert server.infer("two_versions", ONE).json()["model_version"] == "2"


@pytest.mark.parametrize("suffix", ["", "/ready", "/config", "/stats"])
def test_an_unknown_model_or_version_is_not_found(server: RunningServer, suffix: str) -> None:
    for path in (f"/v2/models/nope{suffix}", f"/v2/models/nope/versions/1{suffix}"):
        answer = server.get(path)
        assert answer.status == 404
        assert "Request for unknown model: 'nope' is not found; " in answer.error
    near = server.get(f"/v2/models/add_subs{suffix}").error
    assert near.startswith("Request for unknown model: 'add_subs' is not found; did you mean add_sub"), near
    answer = server.get(f"/v2/models/add_sub/versions/9{suffix}")
    assert answer.status == 404
    assert "'add_sub' version 9 is not found" in answer.error


@pytest.mark.parametrize("version", ["x", "-1", "1.0", "٣", "9" * 30, "1e3", " 1", "%31%00"])
def test_a_version_that_is_no_number_is_refused(server: RunningServer, version: str) -> None:
    answer = server.get(f"/v2/models/add_sub/versions/{quote(version, safe='%')}")
    assert answer.status == 400
    assert "must be a number" in answer.error


def test_statistics_of_one_model_and_of_all(server: RunningServer) -> None:
    server.infer("two_versions", ONE)
    (row,) = server.get("/v2/models/two_versions/versions/2/stats").json()["model_stats"]
    assert (row["name"], row["version"]) == ("two_versions", "2")
    assert row["inference_count"] >= 1
    assert {"success", "fail", "queue", "compute_input", "compute_infer", "compute_output"} <= set(
        row["inference_stats"]
    )
    everything = server.get("/v2/models/stats").json()["model_stats"]
    assert {"two_versions", "add_sub"} <= {each["name"] for each in everything}


def test_configuration_is_proto_json_in_snake_case(server: RunningServer) -> None:
    config = server.get("/v2/models/add_sub/config").json()
    assert config["max_batch_size"] == 8
    assert config["input"][0] == config["input"][0] | {"name": "a", "data_type": "TYPE_FP32", "dims": [4]}


@pytest.mark.parametrize("path", ["/v2/repository/index", "/v2/repository/local/index"])
def test_the_repository_index_lists_name_version_state_and_reason(server: RunningServer, path: str) -> None:
    rows = server.post(path, {"ready": True}).json()
    assert {"name": "two_versions", "version": "2", "state": "READY", "reason": ""} in rows
    assert server.post(path).json() == rows


@pytest.mark.parametrize("verb", ["load", "unload"])
@pytest.mark.parametrize("prefix", ["/v2/repository/models", "/v2/repository/local/models"])
def test_load_and_unload_need_explicit_mode(server: RunningServer, prefix: str, verb: str) -> None:
    answer = server.post(f"{prefix}/add_sub/{verb}")
    assert answer.status == 400
    assert "explicit model load / unload is not allowed if polling is enabled" in answer.error


def test_an_output_as_a_verb_of_v1_is_answered_with_the_request_for_it(server: RunningServer) -> None:
    answer = server.post("/v1/models/identity:predict_proba", {"instances": [[1]]})
    assert answer.status == 405
    assert (
        "; predict_proba is no verb of V1, which has predict and explain; an output of the model is had" in answer.error
    )
    assert 'POST /v2/models/identity/infer with "outputs": [{"name": "predict_proba"}]' in answer.error


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("POST", "/", "GET, HEAD"),
        ("POST", "/v2", "GET, HEAD"),
        ("POST", "/v2/health/live", "GET, HEAD"),
        ("GET", "/v2/models/scalar/infer", "POST"),
        ("DELETE", "/v2/models/scalar", "GET, HEAD"),
        ("GET", "/v2/repository/index", "POST"),
        ("OPTIONS", "/v2/models/scalar/infer", "POST"),
        ("PUT", "/v2/models/scalar/versions/1/infer", "POST"),
        ("PATCH", "/v2/models/scalar/infer", "POST"),
    ],
)
def test_another_method_is_405_with_what_is_allowed(server: RunningServer, method: str, path: str, allow: str) -> None:
    answer = server.request(method, path)
    assert answer.status == 405
    assert answer.headers["allow"] == allow
    assert method in answer.error
    assert ("POST /v1/models/MODEL:predict, and /docs has examples" in answer.error) == (path == "/")


def test_another_method_is_told_in_the_words_of_its_dialect(server: RunningServer) -> None:
    by_dialect = {path: server.request("PUT", path) for path in ("/predict", "/v1/completions", "/api/status")}
    assert {answer.status for answer in by_dialect.values()} == {405}
    assert "use POST" in by_dialect["/predict"].json()["detail"]
    assert "use POST" in by_dialect["/v1/completions"].json()["error"]["message"]
    status = by_dialect["/api/status"].headers["nv-status"]
    assert status.startswith("code: INVALID_ARG"), status


@pytest.mark.parametrize(
    "path",
    ["/v3", "/v2x", "/v2/model", "/v2/models//infer", "/v2/models/scalar/nope", "/v2/health", "/v2/health/x",
     "/v2/models/scalar/versions", "/v2/models/scalar/versions/1/nope", "/%76%32x", "/v2/repository"],
)  # fmt: skip
def test_what_is_no_route_is_404(server: RunningServer, path: str) -> None:
    answer = server.get(path)
    assert answer.status == 404
    assert path[:10] in answer.error


@pytest.mark.parametrize("path", ["/v2/", "/v2/health/live/", "/v2/models/", "/v2/models/scalar/", "/v2/?verbose=1"])
def test_a_trailing_slash_and_a_query_change_nothing(server: RunningServer, path: str) -> None:
    assert server.get(path).status == 200


def test_names_may_be_percent_encoded(server: RunningServer) -> None:
    path = f"/v2/models/{quote('ümläut & co')}"
    assert server.get(path).json()["name"] == "ümläut & co"
    assert server.post(f"{path}/infer", {"inputs": [json_tensor("x", "FP32", [1, 2], [1, 2])]}).status == 200
    assert server.get("/v2/models/%73calar").json()["name"] == "scalar"
    assert server.get("/%76%32").status == 200


def test_an_encoded_path_that_is_not_utf8_is_refused(server: RunningServer) -> None:
    answer = server.get("/v2/models/%ff%fe")
    assert (answer.status, "UTF-8" in answer.error) == (400, True)


def test_an_encoded_slash_stays_within_the_name(server: RunningServer) -> None:
    answer = server.get("/v2/models/scalar%2Fready")
    assert answer.status == 404
    assert "'scalar/ready' is not found" in answer.error


@pytest.mark.parametrize("path", ["/v2/health/live", "/v2/models/scalar", "/v2/models/scalar/ready"])
def test_head_answers_as_get_without_a_body(server: RunningServer, path: str) -> None:
    got, headed = server.get(path), server.request("HEAD", path)
    assert headed.status == got.status == 200
    assert headed.body == b""
    assert headed.headers["content-length"] == got.headers["content-length"]


def test_a_request_id_and_trace_context_come_back(server: RunningServer) -> None:
    context = {"X-Request-Id": "abc-1", "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    for full in (False, True):
        answer = server.infer("two_versions", ONE, context, full=full)
        assert answer.headers["x-request-id"] == "abc-1"
        assert answer.headers["traceparent"] == context["traceparent"]
        odd = server.infer("two_versions", ONE, {"traceparent": "00-zz-1-01"}, full=full)
        assert "traceparent" not in odd.headers
