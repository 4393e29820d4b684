"""Every case has the outcome that Triton's server had, but for those that differences.json lists with a reason."""

import re
from collections.abc import Mapping

import pytest
from tests.serving import RunningServer
from tests.triton_compatibility.play import Address, Case, Outcome, key, outcomes, read_cases
from tests.triton_compatibility.scores_page import MIN_PHRASES, differences, expected
from tests.triton_compatibility.servers import SERVERS, start_flags, write_repository

from pilotlight_predictor.config import SettingsError, parse

CASES = read_cases()
MINE = ["--compat=triton", "--allow-shared-memory", "--warmup=none"]


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Outcome]:
    found = {key(case): _start(case) for case in CASES if "flags" in case}
    for name, server in SERVERS.items():
        folder = tmp_path_factory.mktemp(name)
        repository = write_repository(folder / "models", server)
        flags = [*MINE, f"--model-repository={repository}", f"--files-dir={folder}", "--grpc-port=0"]
        with RunningServer(folder, *flags, *start_flags(server), ready=False) as running:
            running.wait_until(lambda: running.get("/v2/health/ready").status == 200, "ready")
            grpc_port = int(running.wait_for_event("grpc.listening")["grpc_port"])
            address = Address(repository, running.port, grpc_port, running.metrics_port)
            cases = [case for case in CASES if case.get("on", "plain") == name and "flags" not in case]
            found |= outcomes(cases, address)
    return found


def _start(case: Case) -> Outcome:
    base = [*MINE, "--model-repository=models", *start_flags(SERVERS["shm"])]
    try:
        parse([*base, *case["flags"]], {})
    except SettingsError as error:
        return {"status": "refused", "error": str(error)}
    return {"status": "accepted"}


def difference(theirs: Outcome, mine: Outcome) -> str:
    """Return the part in which two outcomes differ: status, body or text; empty if none does."""
    for part in ("status", "body", "shows"):
        if part in theirs and theirs[part] != mine.get(part):
            return part
    return "text" if key_phrase(theirs.get("error", "")) not in _plain(mine.get("error", "")) else ""


def key_phrase(error: str) -> str:
    """Return the longest clause of the first line."""
    return max(re.split(r"[,;:.] |; ", _plain(error)), key=len)


def _plain(error: str) -> str:
    return re.sub(r"\[request id: .*?\] ", "", error.strip().split("\n")[0]).lower().rstrip(".,;: ")


def test_there_are_ten_cases_or_more_for_every_row() -> None:
    rows = [case["row"] for case in CASES]
    assert len({key(case) for case in CASES}) == len(CASES) >= 400
    assert min(rows.count(row) for row in set(rows)) >= 10


def test_every_outcome_is_triton_s_or_listed_with_a_reason(ours: Mapping[str, Outcome]) -> None:
    found = {name: difference(theirs, ours[name]) for name, theirs in expected().items()}
    differing = {name for name, part in found.items() if part and part != "text"}
    assert differing == differences().keys()
    assert len(differing) <= 0.02 * len(found)


def test_most_texts_have_triton_s_key_phrase(ours: Mapping[str, Outcome]) -> None:
    texts = {name: theirs for name, theirs in expected().items() if theirs.get("error") and "flags: " not in name}
    missing = [name for name, theirs in texts.items() if difference(theirs, ours[name])]
    assert len(missing) <= (1 - MIN_PHRASES) * len(texts), missing
