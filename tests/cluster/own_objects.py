"""Our own eyes on the real cluster: the Cluster of the target, with all rights or with those of a new account."""

import os

from tests.cluster.real_cluster import Cluster

from pilotlight.targets.kubernetes.client import Cluster as OurCluster
from pilotlight.targets.kubernetes.client import KubeConnection


def our_cluster(cluster: Cluster) -> OurCluster:
    from kubernetes import client, config

    made = client.Configuration()
    config.load_kube_config(os.fspath(cluster.kubeconfig), client_configuration=made)
    return OurCluster(KubeConnection(client.ApiClient(made)))


def as_account(cluster: Cluster, namespace: str, name: str) -> OurCluster:
    """What a service account of that name sees, which nobody has given a right yet."""
    from kubernetes import client

    cluster.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}}, namespace=namespace)
    token = cluster.kubectl("-n", namespace, "create", "token", name).strip()
    full = our_cluster(cluster).connection.api.configuration
    made = client.Configuration(host=full.host, api_key={"authorization": f"Bearer {token}"})
    made.ssl_ca_cert = full.ssl_ca_cert
    return OurCluster(KubeConnection(client.ApiClient(made)))
