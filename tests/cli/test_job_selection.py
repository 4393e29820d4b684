"""Who gets a request: the job that is named, the only one of a network, the only one at all; never a guess."""

import pytest

from pilotlight.errors import NotFound
from pilotlight.microservices.registry.records import Entry
from pilotlight.microservices.registry.registry_file import RegistryState
from platformctl.microservice.shared_options import Ambiguous, choose, choose_to_stop


def entry(arch: str, at: str = "2026-01-01") -> Entry:
    return Entry("docker", arch, "http://localhost:8080", at)


NONE = RegistryState({})
ONE = RegistryState({"a": entry("cosmos-rl")}, "a")
SEVERAL = RegistryState({"a": entry("cosmos-rl"), "b": entry("cosmos-rl", "2026-01-02"), "c": entry("pilotlight")}, "b")


def test_a_job_id_wins_over_everything() -> None:
    assert choose(SEVERAL, "c", "cosmos-rl") == "c"
    with pytest.raises(NotFound, match="no microservice has the job id z; there are a, b, c"):
        choose(SEVERAL, "z")


def test_the_only_one_of_a_network_is_taken() -> None:
    assert choose(SEVERAL, network_arch="pilotlight") == "c"
    with pytest.raises(NotFound, match="no microservice for vila"):
        choose(SEVERAL, network_arch="vila")


def test_several_of_a_network_are_listed_with_their_start_and_none_is_picked() -> None:
    with pytest.raises(Ambiguous, match=r"(?s)a  cosmos-rl .*2026-01-01.*b  cosmos-rl .*2026-01-02"):
        choose(SEVERAL, network_arch="cosmos-rl")


def test_without_a_name_the_only_one_is_taken_and_the_latest_of_several_is_not() -> None:
    assert choose(ONE) == "a"
    with pytest.raises(Ambiguous, match="3 microservices are running"):
        choose(SEVERAL)
    with pytest.raises(NotFound, match="no microservice is running"):
        choose(NONE)


def test_what_the_api_started_is_taken_by_its_id_only() -> None:
    closed = Entry("local", "cosmos-rl", "unix:/x", "2026-01-03", closed=True)
    assert choose(RegistryState({**ONE.entries, "org": closed}, "a")) == "a"
    assert choose(RegistryState({**ONE.entries, "org": closed}, "a"), network_arch="cosmos-rl") == "a"
    assert choose(RegistryState({"org": closed}), "org") == "org"
    with pytest.raises(NotFound, match="no microservice is running"):
        choose(RegistryState({"org": closed}))


def test_a_stop_without_an_id_means_the_latest() -> None:
    assert choose_to_stop(SEVERAL) == "b"
    assert choose_to_stop(SEVERAL, "a") == "a"
    with pytest.raises(NotFound):
        choose_to_stop(NONE)
