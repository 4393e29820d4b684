"""Token quotas: requests are admitted until the budget is spent, and a day's total survives a restart."""

from pilotlight.gateway.token_quotas import DAY, TokenQuotas
from pilotlight.wire.service_access import TokenQuota

QUOTA = TokenQuota(per_minute=600, per_day=1000)
NOON = 20_000.5 * DAY


def wait_of(quotas: TokenQuotas, caller: str, now: float, wall: float = NOON) -> int:
    refusal = quotas.check(caller, QUOTA, "default/llm", now, wall)
    return int(refusal.headers["Retry-After"]) if refusal else 0


def test_a_debt_is_paid_before_the_next_request() -> None:
    quotas = TokenQuotas()
    assert wait_of(quotas, "ada", 0.0) == 0
    quotas.spend("ada", QUOTA, 700, 0.0, NOON)
    assert (wait_of(quotas, "ada", 0.0), wait_of(quotas, "bob", 0.0)) == (11, 0)
    assert (wait_of(quotas, "ada", 10.0), wait_of(quotas, "ada", 10.2)) == (1, 0)


def test_a_day_s_total_is_restored_and_ends_with_the_day() -> None:
    quotas = TokenQuotas()
    quotas.restore("ada", 20_000, 999, 0.0)
    assert wait_of(quotas, "ada", 0.0) == 0
    quotas.spend("ada", QUOTA, 1, 0.0, NOON)
    quotas.restore("ada", 20_000, 5, 0.0)  # what was stored is older than what is counted
    quotas.restore("ada", 19_999, 5000, 0.0)
    assert wait_of(quotas, "ada", 0.0) == DAY // 2
    assert wait_of(quotas, "ada", 60.0, NOON + DAY / 2) == 0


def test_accounts_are_bounded() -> None:
    quotas = TokenQuotas(max_callers=2)
    for caller in ("ada", "bob", "eve"):
        quotas.spend(caller, QUOTA, 2000, 0.0, NOON)
    assert [wait_of(quotas, caller, 0.0) > 0 for caller in ("eve", "bob", "ada")] == [True, True, False]
