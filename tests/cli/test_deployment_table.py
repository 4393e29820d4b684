"""Features of deployment command lines, compared across tools: which of our tests holds each row.

The rows are those by which kn, kubectl, Helm, BentoML, Modal, gcloud run, fly, Argo Rollouts and KServe were compared.
"""

import ast
from pathlib import Path

import pytest

from pilotlight.targets.kubernetes.target import KubernetesTarget
from pilotlight.targets.local.client import LocalTarget
from pilotlight.targets.remote.endpoint_target import EndpointTarget
from pilotlight.targets.target import ServiceVerbs, Target

TESTS = Path(__file__).resolve().parents[1]
VERBS, TARGETS = "cli/test_embedded_verbs.py", "cli/test_targets.py"
ROWS = {
    "waits by default": [(VERBS, "test_a_deploy_says_what_happens_and_ends_with_the_url")],
    "live progress with cause": [
        (VERBS, "test_a_model_that_cannot_be_loaded_is_told_while_the_old_one_serves"),
        ("cli/test_wait_ready.py", "test_a_phase_that_lasts_shows_its_duration_on_a_terminal"),
    ],
    "URL printed at end": [(VERBS, "test_a_deploy_says_what_happens_and_ends_with_the_url")],
    "JSON and YAML output": [(VERBS, "test_status_and_list_in_every_format")],
    "diff before apply": [
        (VERBS, "test_a_difference_to_what_runs_is_shown_and_nothing_is_done"),
        ("cli/test_model_content.py", "test_an_edited_model_is_a_new_revision_and_the_old_one_keeps_its_bytes"),
    ],
    "server dry-run": [
        ("cli/test_embedded_targets.py", "test_a_dry_run_by_the_server_refuses_what_a_deploy_would"),
        ("cluster/test_raw.py", "test_a_dry_run_writes_nothing_and_what_a_release_lacks_is_taken_away"),
    ],
    "offline render": [("cli/test_render.py", "test_yaml_and_json_say_the_same_in_the_order_of_applying")],
    "traffic percentages": [(VERBS, "test_traffic_by_hand_holds_over_a_deploy_until_it_is_reset")],
    "metric-driven canary": [
        ("platform/canaries/runner/test_promises.py", "test_a_revision_that_answers_with_errors_takes_itself_back"),
        ("cluster/test_canary_story.py", "test_a_bad_revision_takes_itself_back_and_a_good_one_promotes_itself"),
    ],
    "pause, promote and abort verbs": [
        ("platform/canaries/runner/test_verbs.py", "test_somebody_steers_it"),
        ("cluster/test_canary_story.py", "test_without_requests_either_side_is_asked_and_abort_leads_everything_back"),
    ],
    "history and rollback": [
        (VERBS, "test_history_lists_releases_with_their_change_and_which_serves"),
        (VERBS, "test_a_canary_is_promoted_and_rolled_back_at_once"),
    ],
    "doctor": [
        (TARGETS, "test_doctor_finds_this_machine_able_and_names_who_holds_a_port"),
        (TARGETS, "test_every_failing_check_has_a_fix"),
    ],
    "completes live names": [
        (VERBS, "test_a_shell_completes_live_names"),
        ("cli/test_completion.py", "test_a_platform_that_is_down_completes_nothing_in_silence"),
    ],
    "runs with no cluster": [
        ("cli/test_demo.py", "test_the_demo_goes_from_deploy_over_a_canary_to_zero_and_back_and_leaves_nothing")
    ],
    "web UI": [
        ("platform/console/test_browser.py", "test_services_change_before_ones_eyes"),
        ("platform/api/test_access.py", "test_the_root_leads_a_browser_to_the_console"),
    ],
    "same verbs local and cluster": [
        ("cli/test_deployment_table.py", "test_every_target_has_every_verb"),
        ("cluster/test_one_file.py", "test_one_file_is_deployed_asked_scaled_and_deleted"),
    ],
}


@pytest.mark.parametrize("row", ROWS)
def test_a_row_is_held_by_tests_that_exist(row: str) -> None:
    for file, name in ROWS[row]:
        tree = ast.parse((TESTS / file).read_text("utf-8"))
        assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, f"{file}: {name}"


def test_the_table_has_all_rows() -> None:
    assert len(ROWS) == 16


@pytest.mark.parametrize("target", [LocalTarget, KubernetesTarget, EndpointTarget])
def test_every_target_has_every_verb(target: type) -> None:
    verbs = {name for kind in (ServiceVerbs, Target) for name, value in vars(kind).items() if callable(value)}
    assert not {name for name in verbs if not name.startswith("_")} - set(dir(target))
