"""Who may ask: keys and tokens of an org, the platform's own, and nobody else."""

import calendar
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from tests.http_reply import Reply
from tests.platform.microservices.api.conftest import ORG, Api

from pilotlight.errors import NotFound, UsageError
from pilotlight.microservices.api import routes
from pilotlight.microservices.api.org_records import LOGIN_RATE, login_delay, rate_limit_keys
from pilotlight.microservices.registry import api_keys
from pilotlight.microservices.registry.database import OrgStore
from pilotlight.targets.local.home_directory import Home
from pilotlight.wire.token_bucket import TokenBuckets

NOW = 1_000_000.0


@pytest.fixture
def store(tmp_path: Path) -> OrgStore:
    return OrgStore.open(Home(tmp_path))


def proven(store: OrgStore, org: str, shown: str, now: float = NOW) -> bool:
    return api_keys.verify(api_keys.find_key_hash(store, org, shown, now), shown)


def test_a_key_opens_its_org_and_no_other(store: OrgStore) -> None:
    shown, _ = api_keys.create(store, "acme", NOW, None)
    assert proven(store, "acme", shown)
    assert not proven(store, "other", shown)
    assert not proven(store, "acme", shown[:-1] + ("A" if shown[-1] != "A" else "B"))
    assert not proven(store, "acme", "")
    assert not proven(store, "acme", "nvapi-whatever")


def test_neither_key_nor_token_is_in_the_file(store: OrgStore, tmp_path: Path) -> None:
    shown, key = api_keys.create(store, "acme", NOW, None)
    token, _ = api_keys.issue(store, "acme", key.id, NOW)
    store.close()
    files = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert shown.split("-", 2)[2].encode() not in files
    assert token.encode() not in files


def test_a_key_ends_and_its_tokens_with_it(store: OrgStore) -> None:
    shown, key = api_keys.create(store, "acme", NOW, 60.0)
    token, expires_at = api_keys.issue(store, "acme", key.id, NOW)
    assert expires_at == NOW + api_keys.TTL_S
    assert api_keys.org_of(store, token, NOW + 59) == "acme"
    assert api_keys.org_of(store, token, NOW + 60) is None
    assert not proven(store, "acme", shown, NOW + 60)


def test_a_token_ends_by_itself_and_is_forgotten_at_the_next_login(store: OrgStore) -> None:
    _, key = api_keys.create(store, "acme", NOW, None)
    token, expires_at = api_keys.issue(store, "acme", key.id, NOW)
    assert api_keys.org_of(store, token, expires_at) is None
    api_keys.issue(store, "acme", key.id, expires_at)
    assert len(store.database.rows("SELECT * FROM tokens")) == 1


def test_a_deleted_key_takes_its_tokens_along(store: OrgStore) -> None:
    shown, key = api_keys.create(store, "acme", NOW, None)
    token, _ = api_keys.issue(store, "acme", key.id, NOW)
    api_keys.delete(store, key.id)
    assert api_keys.org_of(store, token, NOW) is None
    assert not proven(store, "acme", shown)
    with pytest.raises(NotFound, match="no key has the id"):
        api_keys.delete(store, key.id)


@pytest.mark.parametrize("org", ["", "Acme", "a_b", "-a", "a" * 64, "a/b", "a.b"])
def test_an_org_is_a_namespace(store: OrgStore, org: str) -> None:
    with pytest.raises(UsageError, match="as a namespace"):
        api_keys.create(store, org, NOW, None)


def test_the_file_is_private_and_made_by_steps(store: OrgStore, tmp_path: Path) -> None:
    path = tmp_path / "microservices.db"
    assert path.stat().st_mode & 0o777 == 0o600
    with closing(sqlite3.connect(path)) as opened:
        assert opened.execute("PRAGMA user_version").fetchone() == (1,)


def test_a_wrong_login_does_not_say_what_was_wrong(api: Api) -> None:
    wrong_key = api.login("plk-000000000000-" + "A" * 43)
    wrong_org = api.login(api.key, "nobody")
    garbage = api.login("x")
    assert {wrong_key.status, wrong_org.status, garbage.status} == {401}
    assert wrong_key.body == wrong_org.body == garbage.body
    assert wrong_key.headers["www-authenticate"] == "Bearer"


def test_a_token_that_is_no_text_is_one_that_nobody_has(api: Api) -> None:
    path = f"/orgs/{ORG}/workspaces"
    for shown in ("\xff", "\xff.\xff.\xff"):
        assert api.ask("GET", path, token="", headers={"Authorization": f"Bearer {shown}"}).status == 401


def test_no_more_of_a_login_is_read_than_one_can_have(api: Api) -> None:
    body = {"ngc_key": "x" * 5000, "ngc_org_name": ORG}
    assert api.ask("POST", "/login", body, token="").status == 413


def test_a_login_needs_both_fields(api: Api) -> None:
    for body in ({}, {"ngc_key": api.key}, {"ngc_key": 1, "ngc_org_name": ORG}, []):
        assert api.ask("POST", "/login", body, token="").status == 400
    assert api.ask("POST", "/login", b"{", token="").status == 400


def flood(api: Api, key: str, org: str = ORG) -> list[Reply]:
    """More logins than may be, at once: what is allowed comes back with time."""
    with ThreadPoolExecutor(LOGIN_RATE.burst + 5) as pool:
        return list(pool.map(lambda _: api.login(key, org), range(LOGIN_RATE.burst + 5)))


def test_logins_are_limited_by_address_and_org(api: Api) -> None:
    assert api.login("x", "flooded").status == 401
    limited = next(reply for reply in flood(api, "x", "flooded") if reply.status != 401)
    assert limited.status == 429
    assert int(limited.headers["retry-after"]) >= 1
    assert api.login(api.key).status == 200  # others are not held up


def test_names_of_orgs_that_are_made_up_do_not_get_round_the_limit() -> None:
    logins = TokenBuckets()
    waits = [login_delay(logins, rate_limit_keys("", "10.0.0.1", f"org-{number}"), 0.0) for number in range(100)]
    assert waits[0] == 0.0
    assert waits[-1] > 0.0
    assert login_delay(logins, rate_limit_keys("", "10.0.0.2", "org-1"), 0.0) == 0.0
    assert login_delay(logins, rate_limit_keys("", "10.0.0.1", "org-200"), 60.0) == 0.0


def test_who_does_not_know_a_key_cannot_lock_its_owner_out(api: Api) -> None:
    """All come from one address here, as behind a proxy."""
    assert 429 in [reply.status for reply in flood(api, "plk-000000000000-" + "x" * 43)]
    assert [api.login(api.key).status for _ in range(12)] == [200] * 12  # nor do logins that succeed count


def test_a_key_whose_secret_is_guessed_is_limited_by_itself(api: Api) -> None:
    guessed, other = (api.ctl("api", "key", "create", "guessed") for _ in range(2))
    wrong = guessed[:17] + "x" * 43
    assert 429 in [reply.status for reply in flood(api, wrong, "guessed")]
    assert api.login(other, "guessed").status == 200


ROUTES = [(route.method, route.path) for area in routes.AREAS if area.name != "login" for route in area.routes]


def real(path: str, org: str = ORG) -> str:
    return path.removeprefix("/api/v1").format(org=org, experiment="e", job="j", workspace="w")


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_every_route_of_an_org_wants_a_token(api: Api, method: str, path: str) -> None:
    for shown in ("", "wrong"):
        assert api.ask(method, real(path), b"{}", token=shown).status == 401
    assert api.ask(method, real(path), b"{}", token="", headers={"Authorization": f"Basic {api.token}"}).status == 401


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_another_org_is_not_there_for_a_token(api: Api, method: str, path: str) -> None:
    found = api.ask(method, real(path, "other"), b"{}")
    assert (found.status, found.json()["error"]) == (404, "no org other for this token")


def test_a_token_of_an_org_opens_nothing_of_the_platform(api: Api) -> None:
    for method, path in (("GET", "/services"), ("POST", "/shutdown"), ("GET", "/events"), ("GET", "/version")):
        assert api.ask(method, path).status == 401
    assert api.ask("GET", "/version", token=api.admin).status == 200


def test_a_wrong_path_or_method_of_an_org_is_404_or_405_for_its_token_alone(api: Api) -> None:
    at = f"/orgs/{ORG}/experiments/e/jobs/j/inference_microservice"
    for method, verb, status, allowed in (
        ("GET", "inference", 405, "POST"), ("POST", "status", 405, "GET,HEAD"), ("GET", "nothing", 404, None),
    ):  # fmt: skip
        for token in (api.token, api.admin):
            reply = api.ask(method, f"{at}/{verb}", b"{}", token=token)
            assert (reply.status, reply.headers.get("allow")) == (status, allowed)
        assert api.ask(method, f"{at}/{verb}", b"{}", token="wrong").status == 401
        other = api.ask(method, f"{at}/{verb}".replace(ORG, "other"), b"{}")
        assert (other.status, other.json()["error"]) == (404, "no org other for this token")
    assert api.ask("GET", "/nothing").status == 401


def test_the_platforms_own_token_may_see_every_org(api: Api) -> None:
    assert api.ok("GET", "/orgs/other/workspaces", token=api.admin) == {"workspaces": []}


def test_keys_are_listed_without_secrets_and_deleted(api: Api) -> None:
    key = api.ctl("api", "key", "create", "brief", "--expires", "1h")
    token = api.login(key, "brief").json()["token"]
    assert api.ask("GET", "/orgs/brief/workspaces", token=token).status == 200
    listed = api.ctl("api", "key", "list", "brief")
    assert key.split("-")[1] in listed
    assert key.split("-", 2)[2] not in listed
    api.ctl("api", "key", "delete", key.split("-")[1])
    assert api.ask("GET", "/orgs/brief/workspaces", token=token).status == 401
    assert api.login(key, "brief").status == 401


def test_a_token_says_when_it_ends(api: Api) -> None:
    told = api.login(api.key).json()
    ends = calendar.timegm(time.strptime(told["expires_at"], "%Y-%m-%dT%H:%M:%SZ"))
    assert abs(ends - time.time() - api_keys.TTL_S) < 120
    assert told["org"] == ORG
