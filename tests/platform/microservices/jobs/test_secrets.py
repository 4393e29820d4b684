"""Secrets travel by name: which are passed, which are refused where they can be seen, and how texts lose them."""

import pytest

from pilotlight.errors import UsageError
from pilotlight.microservices.jobs import launcher
from pilotlight.microservices.registry import secret_references
from pilotlight.targets import secret_redaction

VALUE = "hf_abcdef123456"
ENVIRON = {"HF_TOKEN": VALUE, "access_key": "AKIA0123456789", "PATH": "/bin"}


def test_an_arch_gets_those_of_its_list_that_are_set_and_those_that_were_asked_for() -> None:
    assert secret_references.select(("HF_TOKEN", "WANDB_API_KEY"), ("access_key",), ENVIRON) == (
        "HF_TOKEN",
        "access_key",
    )


def test_one_that_is_not_set_is_named_with_how_to_set_it() -> None:
    with pytest.raises(UsageError, match="the secret WANDB_API_KEY is not set") as refused:
        secret_references.select((), ("WANDB_API_KEY",), ENVIRON)
    assert "export WANDB_API_KEY=" in refused.value.hint


@pytest.mark.parametrize("name", ["TAO_LOGGING_SERVER_URL", "TAO_ADMIN_KEY"])
def test_two_variables_are_never_passed(name: str) -> None:
    for attempt in (
        lambda: secret_references.check_plain({name: "x"}),
        lambda: secret_references.select((), (name,), {name: "x"}),
    ):
        with pytest.raises(UsageError, match="never passed"):
            attempt()


@pytest.mark.parametrize("name", [*secret_redaction.NAMES, "MY_PASSWORD", "AWS_SECRET_ACCESS_KEY"])
def test_the_value_of_a_secret_is_not_taken_from_the_command_line(name: str) -> None:
    with pytest.raises(UsageError, match=f"{name} is a secret") as refused:
        secret_references.check_plain({name: VALUE})
    assert VALUE not in str(refused.value) + refused.value.hint


def test_plain_settings_of_the_trackers_may_be_given() -> None:
    secret_references.check_plain(
        {"WANDB_BASE_URL": "https://w", "CLEARML_API_HOST": "https://c", "WANDB_PROJECT": "p"}
    )


@pytest.mark.parametrize(
    "wish",
    [
        launcher.StartRequest("pilotlight", f"/models/{VALUE}", "docker"),
        launcher.StartRequest("pilotlight", "/m", "docker", env={"NOTE": VALUE}),
        launcher.StartRequest("pilotlight", "/m", "docker", options={"network": VALUE}),
    ],
)
def test_a_value_that_stands_somewhere_else_is_found_and_not_repeated(wish: launcher.StartRequest) -> None:
    with pytest.raises(UsageError, match="holds the value of HF_TOKEN") as refused:
        launcher.build_job(wish, ENVIRON)
    assert VALUE not in str(refused.value)


def test_the_place_of_a_secret_is_none_and_short_words_are_not_mistaken_for_one() -> None:
    secret_references.check_plain({"AWS_WEB_IDENTITY_TOKEN_FILE": "/var/run/token"})
    secret_references.check_absent("the request", "my password is lost", {"DB_PASSWORD": "password"})


def test_texts_of_others_lose_the_values() -> None:
    assert secret_redaction.redact(f"denied: {VALUE}!", ENVIRON) == "denied: <HF_TOKEN>!"
    assert secret_redaction.redact("abc", {"HF_TOKEN": "b"}) == "abc"


def test_a_job_carries_names_alone() -> None:
    job = launcher.build_job(launcher.StartRequest("cosmos-rl", "/m", "docker", secrets=("access_key",)), ENVIRON)
    assert job.secrets == ("HF_TOKEN", "access_key")
    assert VALUE not in repr(job)
    assert ENVIRON["access_key"] not in repr(job)


def test_the_secrets_of_these_containers_are_known_by_name_however_short_they_are() -> None:
    names = "HF_TOKEN WANDB_API_KEY CLEARML_API_ACCESS_KEY CLEARML_API_SECRET_KEY TAO_API_KEY TAO_USER_KEY"
    for name in (*names.split(), "access_key", "secret_key"):
        assert secret_redaction.redact("it is Abc-12", {name: "Abc-12"}) == f"it is <{name}>"
