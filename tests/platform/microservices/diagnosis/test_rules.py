"""What evidence amounts to: each rule by the words and times that make it hold, and by those that do not."""

from pathlib import Path

import pytest
from tests.doc_pages import page_section

from pilotlight.microservices.diagnosis import RULES, Evidence, diagnose, message
from pilotlight.microservices.registry.records import PlatformStatus
from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.repository.layout import ModelSource, check_source, plain_source

GIB = 2**30


def names(**known: object) -> list[str]:
    found = diagnose(Evidence(**known))  # type: ignore[arg-type]
    assert all(each.cause and each.advice for each in found)
    return [each.name for each in found]


@pytest.mark.parametrize(
    "words",
    [
        "CUDA out of memory. Tried to allocate 20.00 MiB",
        "torch.OutOfMemoryError: CUDA out of memory",
        "CUDA_ERROR_OUT_OF_MEMORY: out of memory",
        "CUDA error: out of memory",
        "BFCArena::AllocateRawInternal Failed to allocate memory for requested buffer of size 1073741824",
        "CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)",
    ],
)
def test_a_gpu_without_memory_is_known_by_its_librarys_words(words: str) -> None:
    assert names(phase="failed", errors=(words,)) == ["cuda_out_of_memory"]
    assert "cuda_out_of_memory" in names(phase="failed", platform=PlatformStatus("failed", tail=("Traceback:", words)))


@pytest.mark.parametrize(
    "reason",
    [
        "container model ran out of memory: its limit is 1Gi",
        "OOMKilled",
        "the container was killed because it exceeded its memory limit",
        "OUT_OF_MEMORY (OutOfMemory): it exceeded its memory limit",
    ],
)
def test_a_process_that_the_kernel_ended_wanted_memory(reason: str) -> None:
    assert names(phase="failed", platform=PlatformStatus("failed", reason=reason)) == ["out_of_memory", "crashed"]


def test_a_process_that_somebody_killed_did_not_want_memory() -> None:
    reason = "the container exited with code 137, by signal 9"
    assert names(phase="failed", platform=PlatformStatus("failed", reason=reason)) == ["crashed"]


@pytest.mark.parametrize(
    "words",
    [
        "Load model from m.onnx failed: Protobuf parsing failed.",
        "model.pt holds more than tensors, which can run arbitrary code when loaded",
        "SafetensorError: Error while deserializing header: HeaderTooLarge",
        "PytorchStreamReader failed reading zip archive: failed finding central directory",
    ],
)
def test_a_file_that_is_no_model_is_known_by_the_readers_words(words: str) -> None:
    assert names(phase="failed", errors=(words,)) == ["bad_format"]


def test_a_folder_without_a_model_is_known_by_the_predictors_words(tmp_path: Path) -> None:
    with pytest.raises(LoadFailed) as empty:
        plain_source(tmp_path)
    with pytest.raises(LoadFailed) as unversioned:
        check_source(ModelSource("iris", tmp_path, {}, None))
    for raised in (empty, unversioned):
        assert names(phase="failed", errors=(str(raised.value),)) == ["missing_file"]


def test_a_model_that_cannot_fit_is_told_before_it_fails() -> None:
    coming = {"progress": {"done_bytes": GIB, "total_bytes": 2 * GIB}}
    assert names(phase="initializing", memory=GIB, status=coming) == ["out_of_memory"]
    assert names(phase="initializing", memory=4 * GIB, status=coming) == []
    assert names(phase="loading", memory=GIB, status=coming) == []  # it has a part of it already


@pytest.mark.parametrize(
    "reason",
    [
        "it cannot be scheduled: the pod needs nvidia.com/gpu 1, 0 are free",
        "0/3 nodes are available: 3 Insufficient memory.",
        "0/3 nodes are available: 3 Insufficient cpu.",
        "PENDING (Resources)",
        "PENDING (QOSMaxGRESPerUser)",
    ],
)
def test_a_platform_without_room_is_known_by_its_words(reason: str) -> None:
    assert names(phase="initializing", platform=PlatformStatus("pending", reason=reason)) == ["no_room"]


def test_a_fraction_of_a_cpu_is_too_little() -> None:
    assert names(phase="loading", cpus=0.1) == ["too_few_cpus"]
    assert names(phase="loading", cpus=1.0) == []


def test_a_download_is_slow_only_after_a_while_and_says_how_long_it_takes() -> None:
    progress = {"progress": {"done_bytes": GIB, "total_bytes": 4 * GIB}}
    assert names(phase="initializing", phase_s=10, status=progress) == []
    (found,) = diagnose(Evidence(phase="initializing", phase_s=100, status=progress))
    assert found.name == "slow_download"
    assert "1.0 GiB of 4.0 GiB in 100 s, about 300 s to go" in found.cause
    assert names(phase="initializing", phase_s=100, status={"progress": {"done_bytes": 5, "total_bytes": -1}}) == [
        "slow_download"
    ]
    assert names(phase="loading", phase_s=1000, status=progress) == ["slow_download"]
    assert names(phase="ready", phase_s=100, status=progress) == []
    assert names(phase="initializing", phase_s=100, status={"progress": {"done_bytes": 5, "total_bytes": 5}}) == []


def test_a_long_load_is_told_as_such() -> None:
    assert names(phase="loading", phase_s=301) == ["long_load"]
    assert names(phase="loading", phase_s=200) == []


def test_who_answers_202_for_ever_has_crashed_or_hangs() -> None:
    assert names(phase="initializing", platform=PlatformStatus("failed", reason="the process exited with code 1")) == [
        "crashed"
    ]
    assert names(phase="initializing", platform=PlatformStatus("running", pod_status="CrashLoopBackOff")) == ["crashed"]
    assert names(phase="initializing", platform=PlatformStatus("running"), silent_s=120) == ["silent"]
    assert names(phase="initializing", platform=PlatformStatus("running"), silent_s=20) == []
    assert names(phase="stopping", platform=PlatformStatus("gone")) == []


def test_a_stop_that_does_not_end_names_what_goes_on() -> None:
    (found,) = diagnose(
        Evidence(phase="stopping", phase_s=90, operations=("start",), platform=PlatformStatus("running", "job-0"))
    )
    assert found.name == "cannot_stop"
    assert "start is still running" in found.cause
    assert "job-0" in found.advice
    assert "kubectl delete statefulset" in found.advice
    assert names(phase="stopping", phase_s=5) == []
    assert names(phase="stopping", phase_s=5, errors=("the API server is gone",)) == ["cannot_stop"]


def test_a_refused_request_is_told_as_wrong_parameters() -> None:
    assert names(phase="ready", errors=("temperature = 9, must be a number from 0 to 2",)) == ["wrong_parameters"]
    assert names(phase="ready", rejected="it takes x") == ["wrong_parameters"]
    denied = "media[0] is denied by the store: the workspace's credentials are wrong or may not read it"
    assert names(phase="ready", rejected=denied) == ["storage_denied"]


def test_refused_media_are_told_as_such_and_not_as_parameters() -> None:
    assert names(rejected="media[0] is not in the store", rejected_media=True) == ["wrong_media"]
    assert names(rejected="media[0] is denied by the store", rejected_media=True) == ["storage_denied"]


def test_a_model_that_is_ready_has_overcome_what_its_log_tells() -> None:
    assert (
        names(phase="ready", platform=PlatformStatus("running", tail=("no such file: cache", "CUDA out of memory")))
        == []
    )


def test_only_complaints_of_our_own_log_count() -> None:
    assert message('{"level": "INFO", "message": "no such file, made it"}') == ""
    assert message('{"level": "ERROR", "message": "no such file"}') == "no such file"
    assert message("{broken") == "{broken"


def test_nothing_known_is_nothing_wrong() -> None:
    assert names() == []
    assert names(phase="ready", platform=PlatformStatus("running")) == []


def test_every_finding_has_a_line_on_its_page() -> None:
    from pathlib import Path

    import yaml

    from pilotlight.microservices import diagnosis

    findings = yaml.safe_load(Path(diagnosis.__file__).with_suffix(".yaml").read_text())
    page = page_section("docs/how-to/migrate-tao.md", "When a microservice does not answer")
    told = {line.split("`")[1] for line in page.splitlines() if line.startswith("| `")}
    assert told == findings.keys()
    assert len(RULES) == 12
