"""What Slurm prints, as it was seen to print it, and what is made of it."""

import pytest

from pilotlight.targets.local.supervisor.shim import Exit
from pilotlight.targets.slurm.queue import (
    fields,
    read_account,
    read_exit,
    read_queue,
)

ID = "4ca2f1e6-0d5f-4d39-9a55-6a4f1e3d2b10"


@pytest.mark.parametrize(
    ("line", "state", "status", "reason"),
    [
        ("7|PENDING|n/a|a|port=8080/job|None", "pending", "PENDING", "PENDING"),
        (
            "7|PENDING|n/a|a|x|Resources", "pending", "PENDING (Resources)",
            "PENDING (Resources): no node of the partition has enough free now",
        ),
        (
            "7|PENDING|n/a|a|x|ReqNodeNotAvail, UnavailableNodes:gpu7", "pending",
            "PENDING (ReqNodeNotAvail, UnavailableNodes:gpu7)",
            "PENDING (ReqNodeNotAvail, UnavailableNodes:gpu7): a node that it needs is down, drained or reserved",
        ),
        ("7|PENDING|n/a|a|x|Odd|Reason", "pending", "PENDING (Odd|Reason)", "PENDING (Odd|Reason)"),
        ("7|RUNNING|vm|a|port=8080/job|None", "running", "RUNNING", "RUNNING"),
        ("7|COMPLETED|vm|a|x|None", "stopped", "COMPLETED", "COMPLETED"),
        ("7|CANCELLED|vm|a|x|None", "stopped", "CANCELLED", "CANCELLED"),
        (
            "7|FAILED|vm|a|x|NonZeroExitCode", "failed", "FAILED (NonZeroExitCode)",
            "FAILED (NonZeroExitCode): its command failed",
        ),
        (
            "7|TIMEOUT|vm|a|x|TimeLimit", "failed", "TIMEOUT (TimeLimit)",
            "TIMEOUT (TimeLimit): it reached its time limit: raise time",
        ),
        ("7|NODE_FAIL|vm|a|x|NodeDown", "failed", "NODE_FAIL (NodeDown)", "NODE_FAIL (NodeDown): its node failed"),
    ],
)  # fmt: skip
def test_states_of_slurm_are_states_of_ours_with_the_reason(line: str, state: str, status: str, reason: str) -> None:
    [queued] = read_queue(line + "\n")
    assert (queued.meaning, queued.status, queued.explanation) == (state, status, reason)


@pytest.mark.parametrize(
    ("reason", "meaning"),
    [
        ("PartitionConfig", "it will not start: no node of the partition has the CPUs"),
        ("PartitionDown", "the partition starts no jobs until"),
        ("PartitionTimeLimit", "it will not start: its time limit is above the partition's"),
        ("BadConstraints", "it will not start: no node can meet"),
        ("JobHeldAdmin", "it will not start before the administrator"),
        ("JobHeldUser", "it will not start while it is held: release it with scontrol release"),
        ("AssocMaxJobsLimit", "you run as many jobs as your account allows"),
        ("AssocGrpCpuLimit", "it waits for other jobs: your account has reached its limit"),
        ("QOSMaxWallDurationPerJobLimit", "it will not start: it requests more or less than your quality of service"),
        ("QOSMinCpuNotSatisfied", "it will not start: it requests more or less than your quality of service"),
        ("QOSGrpNodeLimit", "it waits for other jobs: your quality of service has reached its limit"),
        ("QOSNotAllowed", "it will not start: the partition does not accept this quality of service"),
    ],
)
def test_what_a_reason_means_and_whether_waiting_helps(reason: str, meaning: str) -> None:
    [queued] = read_queue(f"7|PENDING|n/a|a|x|{reason}\n")
    assert queued.explanation.startswith(f"PENDING ({reason}): {meaning}")


def test_a_job_without_a_node_has_no_pod_and_one_that_completes_is_not_over() -> None:
    waiting, completing = read_queue("7|PENDING|n/a|a|(null)|None\n8|COMPLETING|vm|b|x|None\n")
    assert (waiting.host, waiting.over, waiting.comment) == ("", False, "")
    assert (completing.id, completing.name, completing.over) == ("8", "b", False)
    assert read_queue("") == []


def test_a_job_of_the_past_is_read_from_the_accounts() -> None:
    cancelled = read_account(f"7|CANCELLED by 1000|vm|{ID}||0:15\n")
    assert cancelled is not None
    assert (cancelled[0].meaning, cancelled[0].name, cancelled[1]) == ("stopped", ID, Exit(signal=15))
    failed = read_account(f"7|FAILED|vm|{ID}||3:0\n")
    assert failed is not None
    assert (failed[0].explanation, failed[1]) == ("FAILED (exit code 3)", Exit(3))
    done = read_account(f"7|COMPLETED|vm|{ID}||0:0\n")
    assert done is not None
    assert (done[0].reason, done[1]) == ("", Exit(0))
    assert read_account("") is None


@pytest.mark.parametrize(
    ("text", "exited"),
    [("0:0", Exit(0)), ("3:0", Exit(3)), ("0:9", Exit(signal=9)), ("", Exit()), ("None", Exit())],
)
def test_an_exit_status_is_a_code_or_a_signal(text: str, exited: Exit) -> None:
    assert read_exit(text) == exited


def test_a_node_says_what_it_calls_itself() -> None:
    assert (
        fields("NodeName=n1 Arch=x86_64 NodeAddr=10.0.0.1 NodeHostName=n1.hpc OS=Linux 6.1 #1 SMP")["NodeHostName"]
        == "n1.hpc"
    )
