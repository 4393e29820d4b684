"""gzip and deflate: bodies in, bodies out, what is chosen, and what a small body may not grow to."""

import gzip
import json
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.serving import RunningServer, binary_body, json_tensor

from pilotlight_predictor.core.compression import choose_encoding, decompress

MIB = 1 << 20
PACK = {"gzip": gzip.compress, "x-gzip": gzip.compress, "GZIP": gzip.compress, "deflate": zlib.compress}
SMALL = json.dumps({"inputs": [json_tensor("x", "FP32", [2], [1, 2])]}).encode()


@pytest.mark.parametrize("full", [False, True], ids=["lane", "full"])
@pytest.mark.parametrize("encoding", list(PACK))
def test_compressed_requests_are_read(server: RunningServer, encoding: str, full: bool) -> None:
    answer = server.infer("identity_fp32", PACK[encoding](SMALL), {"Content-Encoding": encoding}, full=full)
    assert answer.json()["outputs"][0]["data"] == [1, 2]


def test_binary_tensors_may_be_compressed(server: RunningServer) -> None:
    blob = np.arange(2, dtype="<f4").tobytes()
    described = {"name": "x", "datatype": "FP32", "shape": [2], "parameters": {"binary_data_size": 8}}
    body, headers = binary_body({"inputs": [described]}, blob)
    answer = server.infer("identity_fp32", gzip.compress(body), headers | {"Content-Encoding": "gzip"})
    assert answer.json()["outputs"][0]["data"] == [0, 1]


def test_gzip_may_come_in_several_members(server: RunningServer) -> None:
    body = gzip.compress(SMALL[:10]) + gzip.compress(SMALL[10:])
    assert server.infer("identity_fp32", body, {"Content-Encoding": "gzip"}).status == 200


@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize("full", [False, True], ids=["lane", "full"])
def test_a_large_body_comes_out_whole(server: RunningServer, members: int, full: bool) -> None:
    values = np.random.default_rng(1).integers(0, 1000, 200_000).astype("<f4")
    described = {"name": "x", "datatype": "FP32", "shape": [200_000], "parameters": {"binary_data_size": 800_000}}
    output = {"name": "y", "parameters": {"binary_data": True}}
    body, headers = binary_body({"inputs": [described], "outputs": [output]}, values.tobytes())
    third = len(body) // members + 1
    packed = b"".join(gzip.compress(body[at : at + third]) for at in range(0, len(body), third))
    answer = server.infer("identity_fp32", packed, headers | {"Content-Encoding": "gzip"}, full=full)
    assert answer.body.endswith(values.tobytes())


@pytest.mark.parametrize("length", [0, 4060, 4073, 4078, 4095, 4096, 8192])
def test_what_stands_behind_a_stream_is_told_from_it_at_any_length(length: int) -> None:
    noise = np.random.default_rng(length).bytes(length)
    packed = gzip.compress(noise, compresslevel=0) + gzip.compress(b"second")
    assert [bytes(part) for part in decompress(packed, "gzip", 1 << 20)] == [noise + b"second"]


@pytest.mark.parametrize(
    ("encoding", "body", "words"),
    [
        ("gzip", SMALL, "not valid gzip"),
        ("gzip", b"", "cut off"),
        ("gzip", gzip.compress(SMALL)[:-9], "cut off"),
        ("gzip", gzip.compress(SMALL) + b"tail", "not valid gzip"),
        ("deflate", zlib.compress(SMALL)[:-5], "cut off"),
        ("deflate", zlib.compress(SMALL) + b"tail", "after its end"),
        ("deflate", gzip.compress(SMALL), "not valid deflate"),
    ],
)
def test_a_body_that_does_not_unpack_is_refused(server: RunningServer, encoding: str, body: bytes, words: str) -> None:
    answer = server.infer("identity_fp32", body, {"Content-Encoding": encoding})
    assert (answer.status, words in answer.error) == (400, True)


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, gzip", "compress", "\xff"])
@pytest.mark.parametrize("full", [False, True], ids=["lane", "full"])
def test_another_encoding_is_501_with_what_is_known(server: RunningServer, encoding: str, full: bool) -> None:
    answer = server.infer("identity_fp32", SMALL, {"Content-Encoding": encoding}, full=full)
    assert answer.status == 501
    assert answer.headers["accept-encoding"] == "gzip, deflate"
    assert "Content-Encoding" in answer.error


@pytest.mark.parametrize("encoding", ["identity", " identity ", ""])
def test_identity_is_no_encoding(server: RunningServer, encoding: str) -> None:
    assert server.infer("identity_fp32", SMALL, {"Content-Encoding": encoding}).status == 200


@pytest.mark.parametrize("full", [False, True], ids=["lane", "full"])
def test_a_body_that_unpacks_beyond_the_limit_is_413_and_costs_little(server: RunningServer, full: bool) -> None:
    bomb = zlib.compress(b" " * (65 * MIB))
    before = server.rss_bytes()
    for _ in range(3):
        answer = server.infer("identity_fp32", bomb, {"Content-Encoding": "deflate"}, full=full)
        assert answer.status == 413
        assert "--http-max-input-size" in answer.error
    assert server.rss_bytes() - before < 100 * MIB


def test_what_bodies_unpack_to_counts_as_bytes_in_flight(zoo: Path, serve: Callable[..., RunningServer]) -> None:
    small = serve(zoo, "--max-bytes-in-flight", "1048576", "--http-max-input-size", str(8 * MIB))
    answer = small.infer("identity_fp32", gzip.compress(SMALL + b" " * (2 * MIB)), {"Content-Encoding": "gzip"})
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    assert "--max-bytes-in-flight" in answer.error
    for _ in range(20):  # what was taken is given back, or a few of these would fill it
        body = gzip.compress(SMALL + b" " * (MIB // 2))
        assert small.infer("identity_fp32", body, {"Content-Encoding": "gzip"}).status == 200


@pytest.mark.parametrize(
    ("accept", "chosen"),
    [
        ("gzip", "gzip"),
        ("deflate", "deflate"),
        ("gzip, deflate", "gzip"),
        ("deflate, gzip", "gzip"),
        ("gzip;q=0.5, deflate", "deflate"),
        ("gzip; q=0.5 , deflate; q=0.7", "deflate"),
        ("GZIP;Q=1", "gzip"),
        ("gzip;q=0", None),
        ("gzip;q=0, *", "deflate"),
        ("*", "gzip"),
        ("*;q=0", None),
        ("identity", None),
        ("identity;q=1, gzip;q=0.5", None),
        ("identity;q=0.5, gzip", "gzip"),
        ("br, zstd", None),
        ("br, gzip", "gzip"),
        ("gzip;q=nan", None),
        ("gzip;q=x", None),
        ("gzip;level=9", None),
        (",,;;=", None),
        ("", None),
    ],
)
def test_the_encoding_of_an_answer_is_the_one_the_client_likes_best(accept: str, chosen: str | None) -> None:
    assert choose_encoding(accept) == chosen


@pytest.mark.parametrize("full", [False, True], ids=["lane", "full"])
@pytest.mark.parametrize(("encoding", "unpack"), [("gzip", gzip.decompress), ("deflate", zlib.decompress)])
def test_large_answers_are_compressed(
    server: RunningServer, encoding: str, unpack: Callable[[bytes], bytes], full: bool
) -> None:
    document = {"inputs": [json_tensor("x", "FP32", [1000], [0.5] * 1000)]}
    plain = server.infer("identity_fp32", document)
    packed = server.infer("identity_fp32", document, {"Accept-Encoding": encoding}, full=full)
    assert packed.headers["content-encoding"] == encoding
    assert packed.headers["vary"] == "Accept-Encoding"
    assert len(packed.body) < len(plain.body) / 10
    assert unpack(packed.body) == plain.body


def test_the_length_of_the_json_is_that_of_the_unpacked_answer(server: RunningServer) -> None:
    document = {"inputs": [json_tensor("x", "FP32", [1000], [0.5] * 1000)], "parameters": {"binary_data_output": True}}
    answer = server.infer("identity_fp32", document, {"Accept-Encoding": "gzip"})
    body, length = gzip.decompress(answer.body), int(answer.headers["inference-header-content-length"])
    assert json.loads(body[:length])["outputs"][0]["parameters"] == {"binary_data_size": len(body) - length}


def test_members_without_end_cost_no_more_than_a_bomb(server: RunningServer) -> None:
    empty = gzip.compress(b"")
    body = gzip.compress(SMALL) + empty * 1000
    assert server.infer("identity_fp32", body, {"Content-Encoding": "gzip"}).status == 200
    answer = server.infer("identity_fp32", body + empty * (1 << 14), {"Content-Encoding": "gzip"})
    assert (answer.status, "more than 16384 members" in answer.error) == (400, True)


def test_what_does_not_shrink_stays_plain(server: RunningServer) -> None:
    noise = np.random.default_rng(0).random(5000, dtype=np.float32)
    described = {"name": "x", "datatype": "FP32", "shape": [5000], "parameters": {"binary_data_size": noise.nbytes}}
    document = {"inputs": [described], "parameters": {"binary_data_output": True}}
    body, headers = binary_body(document, noise.tobytes())
    answer = server.infer("identity_fp32", body, headers | {"Accept-Encoding": "gzip"})
    assert "content-encoding" not in answer.headers
    assert answer.body.endswith(noise.tobytes())


def test_a_small_answer_stays_plain(server: RunningServer) -> None:
    assert "content-encoding" not in server.infer("identity_fp32", SMALL, {"Accept-Encoding": "gzip"}).headers
