"""Programs are run without a shell, and what they say is reported without secrets."""

import os
import sys
from pathlib import Path

import pytest

from pilotlight.errors import PlatformError, TimedOut
from pilotlight.targets.programs import Programs, shown

ENVIRON = {**os.environ, "HF_TOKEN": "hf_planted0123", "MY_OWN": "another-planted"}


def test_the_values_of_secrets_are_taken_out_of_what_a_program_says() -> None:
    code = "import os, sys; print(os.environ['HF_TOKEN']); sys.exit('refused: ' + os.environ['MY_OWN'])"
    with pytest.raises(PlatformError) as refused:
        Programs(ENVIRON, ["MY_OWN"]).run_checked([sys.executable, "-c", code])
    assert str(refused.value).endswith("failed: refused: <MY_OWN>")
    assert Programs(ENVIRON).run([sys.executable, "-c", code]).out == "<HF_TOKEN>\n"


def test_a_program_that_is_not_there_and_one_that_does_not_end_are_named() -> None:
    with pytest.raises(PlatformError, match="no-such-program is not on the PATH"):
        Programs(ENVIRON).run(["no-such-program"])
    with pytest.raises(TimedOut, match=r"did not answer within 0\.2 s"):
        Programs(ENVIRON).run([sys.executable, "-c", "import time; time.sleep(60)"], timeout_s=0.2)


def test_only_the_last_words_of_a_failure_are_told() -> None:
    code = "import sys; sys.stderr.write('a\\n\\nc: no such thing\\nTry c --help for more\\n'); sys.exit(3)"
    assert Programs(ENVIRON).run([sys.executable, "-c", code]).summary == "c: no such thing"
    assert Programs(ENVIRON).run([sys.executable, "-c", "raise SystemExit(3)"]).summary == "exit code 3"


def test_a_call_is_named_by_program_and_verb() -> None:
    assert shown(["docker", "run", "--env", "A=b"]) == "docker run"
    assert shown(["sbatch", "--parsable"]) == "sbatch"


def test_lines_come_one_by_one_without_secrets_and_the_program_ends_with_the_reader(tmp_path: Path) -> None:
    programs = Programs({"PATH": os.environ["PATH"], "HF_TOKEN": "planted-value"})
    script = f"echo $$ > {tmp_path}/pid; cat; echo planted-value; exec sleep 600"
    lines = programs.lines(["sh", "-c", script], "from stdin\n")
    assert [next(lines), next(lines)] == ["from stdin", "<HF_TOKEN>"]
    pid = (tmp_path / "pid").read_text().strip()
    lines.close()
    assert not Path(f"/proc/{pid}").exists()
    with pytest.raises(PlatformError, match="no-such-program is not on the PATH"):
        next(programs.lines(["no-such-program"]))
