"""From what was read of the cluster to the gateway's table. Pure; asked anew after every change.

A service without its workloads is no route yet: they say who may ask. What they say and nobody understands closes
the door instead of opening it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from pilotlight import names
from pilotlight.gateway.cluster.objects import Address, Hosts, Shares, Slice, Workload
from pilotlight.gateway.table import Backend, Replica, Route
from pilotlight.targets.local import access_rules

Key = tuple[str, str]  # namespace and name
TIMEOUT_S: Final = 300.0
DOMAIN: Final = "svc.cluster.local"


@dataclass(frozen=True, slots=True)
class View:
    """What is known of the cluster, by namespace and name of the objects."""

    addresses: Mapping[Key, Address] = field(default_factory=dict)
    workloads: Mapping[Key, Workload] = field(default_factory=dict)
    hosts: Mapping[Key, Hosts] = field(default_factory=dict)
    slices: Mapping[Key, Slice] = field(default_factory=dict)


def routes(view: View) -> tuple[Route, ...]:
    """In a fixed order, so that two views of the same things give equal tables."""
    replicas, hosts = _replicas(view), _hosts(view)
    shared = {key: _shares(view, key, address) for key, address in _services(view).items()}
    return tuple(
        _route(view, key, shares, replicas, tuple(hosts.get(key, ())))
        for key, shares in shared.items()
        if _known(view, key[0], shares)
    )


def _shares(view: View, key: Key, address: Address) -> Shares:
    """A route that leads to workloads has the shares of a canary; one that leads to us has none."""
    route = view.hosts.get((key[0], names.route(key[1])))
    if address.straight and route is not None and route.shares and _known(view, key[0], route.shares):
        return route.shares
    return address.shares


def _known(view: View, namespace: str, shares: Shares) -> bool:
    return all((namespace, name) in view.workloads for name, _ in shares)


def _services(view: View) -> dict[Key, Address]:
    """By namespace and name of the service; of two objects for one service the first by name counts."""
    found: dict[Key, Address] = {}
    for (namespace, _), address in sorted(view.addresses.items()):
        found.setdefault((namespace, address.service), address)
    return found


def _route(
    view: View, key: Key, shares: Shares, replicas: Mapping[Key, tuple[Replica, ...]], hosts: tuple[str, ...]
) -> Route:
    """Whatever its annotations do to those who read them: other tenants' services are in the same table."""
    try:
        return _open(view, key, shares, replicas, hosts)
    except Exception:  # a parser may fail in a way that nobody thought of
        told = f"{key[1]} is closed: the annotations of its workload that say who may ask cannot be read"
        return Route(*key, (Backend("none", "none", 100, unavailable=told),), hosts)


def _open(
    view: View, key: Key, shares: Shares, replicas: Mapping[Key, tuple[Replica, ...]], hosts: tuple[str, ...]
) -> Route:
    """Raises PlatformError for rules of access that make no sense."""
    namespace, name = key
    sides = {workload: view.workloads[namespace, workload] for workload, _ in shares}
    rules = _rules(sides)
    access_rules.check(rules)
    backends = tuple(
        _backend(workload, share, sides[workload], replicas.get((namespace, workload), ()))
        for workload, share in shares
    )
    return Route(
        namespace, name, backends, hosts, timeout_s=_timeout(view, key, sides),
        access=access_rules.access(rules), rate=access_rules.rate(rules),
    )  # fmt: skip


def _backend(name: str, share: int, workload: Workload, replicas: tuple[Replica, ...]) -> Backend:
    """Known by its workload: while a Deployment is updated its pods are of two revisions, and one line waits for both.

    A request waits as long as a start may take; the route before us is given that time as well.
    """
    tags = (workload.revision,) if workload.revision else ()
    return Backend(name, name, share, replicas, tags, hold_s=workload.deadline_s)


def _rules(sides: Mapping[str, Workload]) -> dict[str, str]:
    """Those of the first workload; whatever the others have that looks like a rule must make sense too."""
    found: dict[str, str] = {}
    for workload in sides.values():
        found = {**workload.access, **found}
    return found


def _timeout(view: View, key: Key, sides: Mapping[str, Workload]) -> float:
    """As the workload was told, else what its route leaves once a start is over."""
    told = max((workload.timeout_s for workload in sides.values()), default=0.0)
    deadline = max((workload.deadline_s for workload in sides.values()), default=0.0)
    route = view.hosts.get((key[0], names.route(key[1])))
    left = route.timeout_s - deadline if route is not None else 0.0
    return told or (left if left > 0 else TIMEOUT_S)


def _hosts(view: View) -> dict[Key, list[str]]:
    found: dict[Key, list[str]] = {}
    for host, owner in _claims(view).items():
        found.setdefault(owner, []).append(host)
    return found


def _claims(view: View) -> dict[str, Key]:
    """Which service a Host means. Names within the cluster are nobody else's; of the rest the oldest route has it."""
    claimed: dict[str, Key] = {}
    for namespace, service in sorted(_services(view)):
        name = f"{names.entry_service(service)}.{namespace}"
        for host in (name, f"{name}.svc", f"{name}.{DOMAIN}"):
            claimed.setdefault(host, (namespace, service))
    for (namespace, _), route in sorted(view.hosts.items(), key=lambda each: (each[1].since, each[0])):
        for host in route.hosts:
            claimed.setdefault(host, (namespace, route.service))
    return claimed


def _replicas(view: View) -> dict[Key, tuple[Replica, ...]]:
    """By namespace and Service; a pod with addresses of two families is one replica."""
    found: dict[Key, dict[str, Replica]] = {}
    for (namespace, _), piece in sorted(view.slices.items()):
        known = found.setdefault((namespace, piece.service), {})
        for replica in piece.replicas:
            known.setdefault(replica.id, replica)
    return {key: tuple(_sorted(known)) for key, known in found.items()}


def _sorted(known: Mapping[str, Replica]) -> Iterator[Replica]:
    return (replica for _, replica in sorted(known.items()))
