import os
import subprocess
import sys

from bench.machine import Cores, busy_share, choose_cores, on_core


def test_load_gets_a_core_that_is_not_a_thread_of_the_servers_core() -> None:
    siblings = {0: {0, 1}, 1: {0, 1}, 2: {2, 3}, 3: {2, 3}}
    assert choose_cores([0, 1, 2, 3], siblings) == Cores(0, 2)


def test_two_threads_of_one_core_are_better_than_none() -> None:
    assert choose_cores([0, 1], {0: {0, 1}, 1: {0, 1}}) == Cores(0, 1)


def test_one_core_runs_unpinned() -> None:
    assert not choose_cores([5], {5: {5}}).pinned


def test_core_is_given_back_afterwards() -> None:
    before = os.sched_getaffinity(0)
    with on_core(min(before)):
        assert os.sched_getaffinity(0) == {min(before)}
    assert os.sched_getaffinity(0) == before


def test_what_others_do_counts_as_busy() -> None:
    spin = "print('begun', flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", spin], stdout=subprocess.PIPE, text=True) as spinning:
        try:
            assert spinning.stdout is not None
            assert spinning.stdout.readline() == "begun\n"
            assert busy_share(0.5) > 0.3 / (os.cpu_count() or 1)
        finally:
            spinning.kill()
