import re

from hypothesis import given
from hypothesis import strategies as st

from pilotlight.k8s import names

LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
services = st.from_regex(r"[a-z]([-a-z0-9]{0,80}[a-z0-9])?", fullmatch=True)
roles = st.sampled_from(["engine", "decoder", "router", "predictor", "transformer", "explainer"])


@given(services, roles, st.sampled_from(["", "canary", "a-long-name-of-a-variant"]))
def test_every_name_and_tag_fits_where_kubernetes_and_knative_put_it(service: str, role: str, variant: str) -> None:
    workload = names.workload(service, role, variant)
    revision = names.revision(workload, "content")
    for tag in (names.TAG_LATEST, names.TAG_PREVIOUS):
        assert len(f"{tag}-{workload}") <= names.LIMIT
    made = [workload, revision, names.headless(workload), names.route(service), names.rules(service)]
    assert all(len(name) <= names.LIMIT and LABEL.fullmatch(name) for name in made), made
    assert len(f"{workload}-99-99") <= names.LIMIT - 11, "a controller's hash comes behind a pod's number"
    assert revision.startswith(f"{workload}-")


@given(services, services, roles)
def test_two_services_never_share_a_workload_name(one: str, other: str, role: str) -> None:
    assert (names.workload(one, role) == names.workload(other, role)) == (one == other)


def test_a_short_name_stays_as_it_is() -> None:
    assert names.workload("llama", "engine") == "llama-engine"
    assert names.workload("llama", "predictor", "blue") == "llama-blue-predictor"


def test_pods_carry_the_labels_that_either_project_s_users_select_by() -> None:
    assert {"ome.io/inferenceservice", "serving.ome.io/inferenceservice"} <= names.pod_labels(
        "ome", "a", "engine", "a-engine"
    ).keys()
    assert "serving.kserve.io/inferenceservice" in names.pod_labels("kserve", "a", "predictor", "a-predictor")
