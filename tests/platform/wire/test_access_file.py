"""The file of access rules: what it may hold, and how a change of it comes into force."""

import os
from pathlib import Path

import pytest

from pilotlight.wire.access_file import CHECK_S, AccessFile, decode, encode
from pilotlight.wire.service_access import Access, AccessRules, Jwt, Rate

ONE, TWO = "0a" * 32, "0b" * 32
FULL = AccessRules(Access((ONE,), Jwt("{}", "https://issuer", "iris", ("ES256",), "predict")), Rate(5, 2.0))


@pytest.mark.parametrize("rules", [FULL, AccessRules(Access((ONE, TWO))), AccessRules(rate=Rate(1))])
def test_rules_are_read_as_they_were_written(rules: AccessRules) -> None:
    assert decode(encode(rules)) == rules


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[]", "null", "no json", "[" * 100_000, '{"tokens": []}', '{"tokens": "0a"}', '{"tokens": ["secret"]}',
     '{"tokens": [1]}', f'{{"tokens": ["{ONE}"], "jtw": {{}}}}', '{"jwt": {}}', '{"jwt": {"keys": 1}}', '{"jwt": []}',
     '{"jwt": {"keys": "{}", "algorithms": [1]}}', '{"rate": {"requests": 0}}',
     '{"rate": {"requests": 1, "seconds": 0}}',
     '{"tokens": [], "rate": {"requests": 1}}', '{"jwt": {}, "rate": {"requests": 1}}',
     '{"rate": {"requests": 1, "seconds": Infinity}}', '{"rate": {"requests": 1, "burst": "many"}}',
     '{"rate": {"requests": "many"}}', '{"rate": {"per": 1}}', f'{{"tokens": ["{ONE.upper()}"]}}'],
)  # fmt: skip
def test_a_file_that_states_no_rule_or_an_invalid_one_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        decode(text)


def test_a_plain_token_is_not_repeated_in_the_error() -> None:
    with pytest.raises(ValueError, match="not SHA-256 in hex") as refused:
        decode('{"tokens": ["hunter2"]}')
    assert "hunter2" not in str(refused.value)


def mounted(folder: Path, version: str, text: str) -> Path:
    """Write a volume as the kubelet does: a link to a folder, replaced by another one."""
    (folder / version).mkdir()
    (folder / version / "access.json").write_text(text)
    (folder / "new").symlink_to(version)
    os.replace(folder / "new", folder / "..data")
    file = folder / "access.json"
    if not file.is_symlink():
        file.symlink_to("..data/access.json")
    return file


def test_a_changed_secret_is_in_force_at_the_next_look_and_an_invalid_one_never_is(tmp_path: Path) -> None:
    problems: list[str] = []
    path = mounted(tmp_path, "one", encode(AccessRules(Access((ONE,)))))
    file = AccessFile(str(path), problems.append, 100.0)
    assert file.rules(100.0).access == Access((ONE,))
    mounted(tmp_path, "two", encode(AccessRules(Access((TWO,)))))
    assert file.rules(100.0 + CHECK_S / 2).access == Access((ONE,))
    assert file.rules(100.0 + CHECK_S).access == Access((TWO,))
    mounted(tmp_path, "three", "{}")
    for moment in (102.0, 103.0, 104.0):
        assert file.rules(moment).access == Access((TWO,))
    assert len(problems) == 1
    assert "the previous rules stay in force" in problems[0]
    (tmp_path / "..data").unlink()
    assert file.rules(105.0).access == Access((TWO,))
    assert len(problems) == 2


def test_a_file_that_becomes_readable_without_another_write_is_in_force(tmp_path: Path) -> None:
    path, revoked = tmp_path / "access.json", encode(AccessRules(Access((TWO,))))
    path.write_text(encode(AccessRules(Access((ONE,)))))
    file = AccessFile(str(path), print, 100.0)
    for moment, text, tokens in ((101.0, "{" * len(revoked), ONE), (102.0, revoked, TWO)):
        path.write_text(text)
        os.utime(path, ns=(1, 1))
        assert file.rules(moment).access == Access((tokens,))


def test_a_file_that_is_missing_or_invalid_at_first_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        AccessFile(str(tmp_path / "none"), print, 0.0)
    (tmp_path / "empty").write_text("")
    with pytest.raises(ValueError, match="is not a file of access rules"):
        AccessFile(str(tmp_path / "empty"), print, 0.0)
