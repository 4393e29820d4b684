"""When a model may run on the event loop, and when it loses that right."""

from pilotlight_predictor.scheduling.instance_thread import (
    MAX_SLOW,
    QUICK_NS,
    RETRY_AFTER,
    TOO_SLOW_NS,
    TRIALS,
    InlineExecutionPolicy,
)


def test_a_quick_warm_up_puts_it_on_the_loop_at_once() -> None:
    assert InlineExecutionPolicy(True, QUICK_NS).inline
    assert not InlineExecutionPolicy(True, QUICK_NS + 1).inline
    assert not InlineExecutionPolicy(True).inline
    assert not InlineExecutionPolicy(False, 1).inline


def test_without_a_warm_up_it_must_prove_itself_in_the_thread() -> None:
    pace = InlineExecutionPolicy(True)
    for _ in range(TRIALS - 1):
        pace.observe(QUICK_NS)
    assert not pace.inline
    pace.observe(QUICK_NS)
    assert pace.inline


def test_one_slow_run_among_the_trials_starts_them_over() -> None:
    pace = InlineExecutionPolicy(True)
    for _ in range(TRIALS - 1):
        pace.observe(1)
    pace.observe(QUICK_NS + 1)
    for _ in range(TRIALS - 1):
        pace.observe(1)
    assert not pace.inline


def test_noise_is_forgiven_but_slowness_is_not() -> None:
    pace = InlineExecutionPolicy(True, 1)
    for _ in range(3 * MAX_SLOW):
        pace.observe(TOO_SLOW_NS + 1)
        pace.observe(1)
    assert pace.inline
    for _ in range(MAX_SLOW):
        pace.observe(TOO_SLOW_NS + 1)
    assert not pace.inline


def test_only_who_was_slow_last_time_has_to_be_measured() -> None:
    pace = InlineExecutionPolicy(True, 1)
    assert not pace.on_probation
    pace.observe(TOO_SLOW_NS + 1)
    assert pace.on_probation
    pace.observe(1)
    assert not pace.on_probation


def test_a_demoted_model_is_tried_again_after_long_good_behaviour() -> None:
    pace = InlineExecutionPolicy(True, 1)
    for _ in range(MAX_SLOW):
        pace.observe(TOO_SLOW_NS + 1)
    for _ in range(RETRY_AFTER - 1):
        pace.observe(1)
    assert not pace.inline
    pace.observe(1)
    assert pace.inline


def test_user_code_never_runs_on_the_loop() -> None:
    pace = InlineExecutionPolicy(False)
    for _ in range(10 * TRIALS):
        pace.observe(1)
    assert not pace.inline
