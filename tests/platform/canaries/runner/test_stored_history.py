"""What is kept of canaries fits where it is kept, and its changes are told as events."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest
from msgspec.structs import replace

from pilotlight.canaries import stored_history
from pilotlight.canaries.canary_state import MAX_MEASUREMENTS, MAX_PAST_CANARIES, Canary, CanaryHistory, Measurement
from pilotlight.canaries.events import canary_events
from pilotlight.errors import Conflict, NotFound, PlatformError
from pilotlight.k8s.timestamps import format_utc
from pilotlight.spec.canary_policy import CanaryPolicy, Check
from pilotlight.targets.local.store.store import Store
from pilotlight.targets.target import CanaryRecord, Release

KEY = ("default", "iris")
NOON = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
CANARY = Canary(CanaryPolicy(interval_s=10.0), "new", "old", 2, 1, format_utc(NOON))
LONG = Measurement("p99_ms", format_utc(NOON), "Failed", 1.0, query="q" * 400, reason="r" * 200)


def test_what_was_written_is_read_again() -> None:
    ledger = CanaryHistory(replace(CANARY, measurements=(LONG,)), (CANARY,))
    assert stored_history.decode_history(CanaryRecord(*KEY, stored_history.encode_history(ledger), "1")) == ledger
    assert stored_history.decode_history(None) == CanaryHistory()


def test_what_another_version_wrote_is_named() -> None:
    with pytest.raises(PlatformError, match="canary of default/iris cannot be read"):
        stored_history.decode_history(CanaryRecord(*KEY, '{"current": {"policy": 3}}', "1"))


def test_a_long_life_fits_into_an_annotation() -> None:
    ledger = CanaryHistory()
    for number in range(3 * MAX_PAST_CANARIES):
        whole = replace(CANARY, revision=f"r{number}", measurements=(LONG,) * (2 * MAX_MEASUREMENTS))
        ledger = stored_history.with_new_canary(ledger, whole)
    written = stored_history.encode_history(ledger)
    assert len(written) < 200 * 1024
    read = stored_history.decode_history(CanaryRecord(*KEY, written, "1"))
    assert read.current is not None
    assert (len(read.current.measurements), len(read.past)) == (MAX_MEASUREMENTS, MAX_PAST_CANARIES)
    assert read.past[0].revision == f"r{3 * MAX_PAST_CANARIES - 2}"


@pytest.mark.parametrize("size", [1_000, 2_000])
def test_whatever_is_asked_and_answered_it_can_be_written_and_aborted(size: int) -> None:
    """An annotation that is too long would be refused with every write, an abort's among them."""
    checks = tuple(Check(f"lat{number}", "q" * size, maximum=5.0) for number in range(20))
    asked = [
        Measurement(each.name, format_utc(NOON), "Error", query=each.query, reason="r" * 50_000) for each in checks
    ]
    whole = replace(CANARY, policy=CanaryPolicy(checks=checks), measurements=tuple(asked) * 12, reason="r" * 50_000)
    ledger = CanaryHistory()
    for _ in range(MAX_PAST_CANARIES + 2):
        ledger = stored_history.with_new_canary(ledger, whole)
    written = stored_history.encode_history(replace(ledger, current=replace(whole, command="abort")))
    assert len(written.encode()) <= stored_history.MAX_STATE_BYTES < 256 * 1024
    read = stored_history.decode_history(CanaryRecord(*KEY, written, "1")).current
    assert read is not None
    assert (read.command, read.policy) == ("abort", whole.policy)


def test_what_was_asked_is_kept_once_for_each_check() -> None:
    others = replace(LONG, check="error_rate")
    written = stored_history.encode_history(CanaryHistory(replace(CANARY, measurements=(LONG, others, LONG, others))))
    read = stored_history.decode_history(CanaryRecord(*KEY, written, "1")).current
    assert read is not None
    assert [bool(each.query) for each in read.measurements] == [False, False, True, True]


def test_a_holder_is_believed_for_three_intervals() -> None:
    held = stored_history.renew_lease(CANARY, "a", NOON)
    assert stored_history.leased_by_other(held, "b", NOON + timedelta(seconds=29))
    assert not stored_history.leased_by_other(held, "b", NOON + timedelta(seconds=31))
    assert not stored_history.leased_by_other(held, "a", NOON)
    assert not stored_history.leased_by_other(CANARY, "b", NOON)


def test_a_clock_that_was_set_back_adds_nothing() -> None:
    assert stored_history.seconds_between(format_utc(NOON), NOON - timedelta(hours=1)) == 0.0


def reasons(*ledgers: CanaryHistory) -> list[str]:
    return [each.reason for before, after in pairwise(ledgers) for each in canary_events(before, after)]


def test_every_change_is_told_once() -> None:
    first = replace(CANARY, weight=5)
    paused = replace(first, phase="Paused", reason="too few requests")
    done = replace(first, phase="Promoted", weight=100)
    held = replace(first, holder="a", renewed_at=format_utc(NOON))
    life = [CanaryHistory(), *map(CanaryHistory, (CANARY, first, held, paused, first, done, done))]
    assert reasons(*life) == ["CanaryStarted", "CanaryStep", "CanaryPaused", "CanaryResumed", "CanaryPromoted"]


def test_one_that_takes_the_place_of_another_tells_of_both() -> None:
    other = replace(CANARY, revision="other")
    ended = replace(CANARY, phase="Superseded", reason="another manifest was deployed")
    assert reasons(CanaryHistory(CANARY), CanaryHistory(other, (ended,))) == ["CanarySuperseded", "CanaryStarted"]


def test_a_rollback_is_a_warning_with_its_reason() -> None:
    (event,) = canary_events(
        CanaryHistory(CANARY), CanaryHistory(replace(CANARY, phase="RolledBack", reason="error_rate is 9 %"))
    )
    assert (event.reason, event.type, event.message) == ("CanaryRolledBack", "Warning", "error_rate is 9 %")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store.open(tmp_path / "state.db")
    made.apply(Release(*KEY, "one", ()), [], format_utc(NOON))
    return made


def test_the_store_takes_a_change_only_from_who_has_seen_the_last(store: Store) -> None:
    first = store.save_canary(KEY, "one", "")
    assert store.save_canary(KEY, "two", first.version).state == "two"
    for version in ("", first.version):
        with pytest.raises(Conflict, match="changed in the meantime"):
            store.save_canary(KEY, "three", version)
    assert [each.state for each in store.canaries()] == ["two"]
    with pytest.raises(NotFound):
        store.save_canary(("default", "nobody"), "one", "")
    store.begin_delete(KEY)
    store.finish_delete(KEY)
    assert store.canary(KEY) is None
    store.close()


def test_the_store_keeps_the_release_that_a_canary_goes_back_to(store: Store) -> None:
    store.save_canary(KEY, stored_history.encode_history(CanaryHistory(CANARY)), "")
    for number in range(2, 30):
        store.apply(Release(*KEY, str(number), ()), [], format_utc(NOON))
    generations = [release.generation for release in store.releases(KEY)]
    assert generations == [*range(29, 19, -1), 1]
    store.close()
