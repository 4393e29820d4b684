"""The home folder is used only if no other user can change what is in it."""

import os
from pathlib import Path

import pytest

from pilotlight.errors import PlatformError
from pilotlight.targets.local import control_process_launcher
from pilotlight.targets.local.home_directory import Home


def test_a_new_home_is_private_and_accepted(tmp_path: Path) -> None:
    home = Home(tmp_path / "home").create()
    control_process_launcher.token(home)
    home.check_owner()
    assert [path.stat().st_mode & 0o777 for path in (home.root, home.run, home.token)] == [0o700, 0o700, 0o600]


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
@pytest.mark.parametrize("name", ["", "run", "token"])
def test_what_others_may_write_is_refused_with_the_command_that_mends_it(tmp_path: Path, name: str, mode: int) -> None:
    home = Home(tmp_path / "home").create()
    control_process_launcher.token(home)
    path = home.root / name
    path.chmod(mode)
    launcher = control_process_launcher
    for use in (home.create, lambda: launcher.token(home), lambda: launcher.living(home)):
        with pytest.raises(PlatformError, match="is writable by other users") as raised:
            use()
        assert raised.value.hint == f"chmod go-w {path}"
    os.system(raised.value.hint)
    home.create()


@pytest.mark.parametrize("uid", [0, 65534])
def test_the_home_of_another_user_is_refused_to_root_too(tmp_path: Path, uid: int) -> None:
    home = Home(tmp_path / "home").create()
    other = os.geteuid() + 1
    with pytest.raises(PlatformError, match=rf"home belongs to uid {os.geteuid()}, not .* \(uid {other}\)") as raised:
        home.check_owner(other)
    assert raised.value.hint == f"chown -R {other} {home.root}, or set PILOTLIGHT_HOME to a new folder"
    if os.geteuid() == 0 and uid:
        os.chown(home.root, uid, -1)
        with pytest.raises(PlatformError, match=f"belongs to uid {uid}"):
            home.create()


def test_a_token_that_is_a_link_is_refused(tmp_path: Path) -> None:
    home = Home(tmp_path / "home").create()
    (tmp_path / "planted").write_text("mine")
    home.token.symlink_to(tmp_path / "planted")
    with pytest.raises(PlatformError, match="is a link"):
        control_process_launcher.token(home)
