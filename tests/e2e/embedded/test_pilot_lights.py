"""Replicas forked by a pilot light, and that none burns on after the platform has ended."""

from pathlib import Path

from tests.embedded import Platform, processes_of, serverless


def test_a_replica_is_forked_and_nothing_burns_after_the_end_whoever_lit_it(tmp_path: Path) -> None:
    with Platform(tmp_path / "home", env={"PILOTLIGHT_PILOT_LIGHT": "on"}) as platform:
        platform.deploy(serverless())
        platform.wait_phase("Ready")
        platform.wait(lambda: any(platform.home.run.glob("pilot-*.sock")), "the pilot light to burn")
        platform.wait_phase("Standby")
        platform.wait(lambda: not platform.replicas(), "the first replica to end")
        assert platform.ask().status == 200
        (replica,) = platform.replicas()
        parent = Path(f"/proc/{replica}/stat").read_text().rpartition(")")[2].split()[1]
        assert b"bootstrap.forkserver" in Path(f"/proc/{parent}/cmdline").read_bytes()
        platform.kill_control()
        platform.wait(platform.answers, "the control process to be back")
    assert processes_of(platform.home) == []
