"""Rules for the triggers of a KEDA ScaledObject: metadata, metric types, queries.

keda_triggers.yaml has the metadata keys of each trigger type. KEDA silently ignores unknown ones, unless its operator
runs with KEDA_CHECK_UNEXPECTED_SCALERS_PARAMS.
"""

from collections.abc import Iterator
from functools import cache
from pathlib import Path

from msgspec import Struct, yaml

from pilotlight.lint import promql_text
from pilotlight.lint.object_accessors import containers, target_of
from pilotlight.lint.rule import Hits, LintContext, Part, rule
from pilotlight.wire.messages import suggestion


class TriggerType(Struct, frozen=True, forbid_unknown_fields=True):
    """Entry of keda_triggers.yaml."""

    required: frozenset[str] = frozenset()
    optional: frozenset[str] = frozenset()
    removed: dict[str, str] = {}
    numbers: frozenset[str] = frozenset()
    open: bool = False

    @property
    def known(self) -> frozenset[str]:
        return self.required | self.optional


@cache
def types() -> dict[str, TriggerType]:
    return yaml.decode(Path(__file__).with_suffix(".yaml").read_bytes(), type=dict[str, TriggerType])


RESOURCE_TYPES = frozenset({"cpu", "memory"})


def triggers(scaled: Part, *types: str) -> Iterator[Part]:
    for trigger in scaled.get("spec", "triggers").each():
        if not types or trigger.get("type").text() in types:
            yield trigger


def query_of(trigger: Part) -> str:
    return trigger.get("metadata", "query").text()


def latency_triggers(scaled: Part) -> Iterator[Part]:
    return (trigger for trigger in triggers(scaled, "prometheus") if promql_text.is_latency(query_of(trigger)))


def least(scaled: Part) -> int:
    return scaled.get("spec", "minReplicaCount").integer(0)


@rule("PL400")
def unknown_key(scaled: Part, _: LintContext) -> Hits:
    for trigger in triggers(scaled):
        known = types().get(trigger.get("type").text())
        if known is None or known.open:
            continue
        for entry in trigger.get("metadata").entries():
            if entry.key in known.known or entry.key in known.removed or entry.key == "operator":
                continue
            hint = suggestion(entry.key, known.known) or f"; known: {', '.join(sorted(known.known))}"
            yield entry, f"KEDA's {trigger.get('type').text()} trigger ignores {entry.key}{hint}"


@rule("PL401")
def removed_key(scaled: Part, _: LintContext) -> Hits:
    for trigger in triggers(scaled):
        known = types().get(trigger.get("type").text())
        for entry in trigger.get("metadata").entries() if known else ():
            if known and entry.key in known.removed:
                yield entry, f"{entry.key} is no longer read by this trigger; {known.removed[entry.key]}"


@rule("PL402")
def operator_key(scaled: Part, _: LintContext) -> Hits:
    for trigger in triggers(scaled):
        operator = trigger.get("metadata", "operator")
        known = types().get(trigger.get("type").text())
        if operator and known and not known.open:
            effect = "has no effect: KEDA scales up above the threshold; invert the query"
            yield operator, f"operator = {operator.text()} {effect}"


@rule("PL403")
def missing_key(scaled: Part, _: LintContext) -> Hits:
    for trigger in triggers(scaled):
        kind = trigger.get("type").text()
        metadata = trigger.get("metadata")
        present = {entry.key for entry in metadata.entries()}
        missing = sorted(types()[kind].required - present) if kind in types() else []
        if missing:
            yield metadata or trigger, f"the {kind} trigger needs {', '.join(missing)}"


@rule("PL404")
def threshold_not_number(scaled: Part, _: LintContext) -> Hits:
    for trigger in triggers(scaled):
        known = types().get(trigger.get("type").text())
        for entry in trigger.get("metadata").entries() if known else ():
            if known and entry.key in known.numbers and entry.number() is None:
                yield entry, f"{entry.key} = {entry.display}, must be a plain number without a unit"


@rule("PL405")
def value_not_string(scaled: Part, _: LintContext) -> Hits:
    for trigger in triggers(scaled):
        for entry in trigger.get("metadata").entries():
            if not isinstance(entry.value, str):
                yield entry, f"{entry.key} = {entry.display}, must be a string in quotes"


@rule("PL406")
def average_of_latency(scaled: Part, _: LintContext) -> Hits:
    if scaled.get("spec", "advanced", "scalingModifiers", "formula"):
        return
    for trigger in triggers(scaled, "prometheus"):
        latency = promql_text.is_latency(query_of(trigger))
        metric_type = trigger.get("metricType")
        if metric_type.text("AverageValue") == "AverageValue" and (
            latency or promql_text.is_utilisation(query_of(trigger))
        ):
            what = f"{'' if metric_type else ' (the default)'} on {'a latency' if latency else 'a utilisation'}"
            effect = "ignores the current number of replicas; write metricType: Value"
            yield metric_type or trigger, f"metricType AverageValue{what} {effect}"


@rule("PL407")
def null_is_zero(scaled: Part, _: LintContext) -> Hits:
    for trigger in latency_triggers(scaled):
        setting = trigger.get("metadata", "ignoreNullValues")
        if setting.boolean(default=True):
            state = f"= {setting.text()}" if setting else "is not set (default true)"
            message = f'ignoreNullValues {state}: a broken scrape reads as latency 0; write "false"'
            yield setting or trigger.get("metadata"), message


@rule("PL408")
def unguarded_nan(scaled: Part, _: LintContext) -> Hits:
    for trigger in triggers(scaled, "prometheus"):
        if promql_text.may_be_nan(query_of(trigger)):
            message = "the query divides 0 by 0 while idle; keep only values `>= 0` and end in `or` a real zero"
            yield trigger.get("metadata", "query"), message


@rule("PL409")
def zero_hides_lost_scrape(scaled: Part, _: LintContext) -> Hits:
    for trigger in latency_triggers(scaled) if least(scaled) >= 1 else ():
        if promql_text.ends_in_zero(query_of(trigger)):
            effect = f"with minReplicaCount {least(scaled)} turns a lost scrape into latency 0"
            yield trigger.get("metadata", "query"), f"`or vector(0)` {effect}; write `or 0 * sum(up{{…}})`"


@rule("PL410")
def several_series(scaled: Part, _: LintContext) -> Hits:
    for trigger in triggers(scaled, "prometheus"):
        names = promql_text.several_series(query_of(trigger))
        if names:
            message = f"{', '.join(names)} may be several series; aggregate to one, as in sum(…)"
            yield trigger.get("metadata", "query"), message


@rule("PL411")
def metric_type_of_trigger(scaled: Part, _: LintContext) -> Hits:
    for trigger in triggers(scaled):
        metric_type = trigger.get("metricType")
        resource = trigger.get("type").text() in RESOURCE_TYPES
        allowed = ("Utilization", "AverageValue") if resource else ("AverageValue", "Value")
        if metric_type and metric_type.text() not in allowed:
            must = f"must be {' or '.join(allowed)} for {trigger.get('type').text()}"
            yield metric_type, f"metricType = {metric_type.text()}, {must}"
        elif resource and not metric_type and not trigger.get("metadata", "type"):
            yield trigger, f"the {trigger.get('type').text()} trigger needs a metricType: {' or '.join(allowed)}"


@rule("PL412")
def same_name(scaled: Part, _: LintContext) -> Hits:
    seen: set[str] = set()
    for trigger in triggers(scaled):
        name = trigger.get("name")
        if name.text() in seen:
            yield name, f"the name {name.text()} is used by an earlier trigger; names must be unique"
        seen |= {name.text()} - {""}


@rule("PL413")
def resource_without_request(scaled: Part, context: LintContext) -> Hits:
    target = target_of(scaled, context)
    for trigger in triggers(scaled, *RESOURCE_TYPES) if target else ():
        resource, only = trigger.get("type").text(), trigger.get("metadata", "containerName").text()
        for container in containers(target) if target else ():
            name, resources = container.get("name").text(), container.get("resources")
            if only in ("", name) and not (resources.get("requests", resource) or resources.get("limits", resource)):
                yield trigger, f"the {resource} trigger needs resources.requests.{resource} in container {name}"


@rule("PL414")
def cache_without_polling(scaled: Part, _: LintContext) -> Hits:
    for trigger in triggers(scaled, "cron", *RESOURCE_TYPES):
        cached = trigger.get("useCachedMetrics")
        if cached.boolean(default=False):
            yield cached, f"useCachedMetrics is not supported for {trigger.get('type').text()}; delete it"
