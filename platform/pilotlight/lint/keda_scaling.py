"""Rules for a KEDA ScaledObject: bounds, fallback, formula, conflicting autoscalers, and scaling to and from zero."""

import re
from collections.abc import Iterator
from typing import Final

from pilotlight.lint.keda_triggers import RESOURCE_TYPES, latency_triggers, least, triggers
from pilotlight.lint.object_accessors import AUTOSCALERS, name, startup_budget, target_key, target_of
from pilotlight.lint.rule import Hits, LintContext, Part, kind_of, rule

DEFAULT_MAXIMUM: Final = 100
DEFAULT_POLLING: Final = 30
DEFAULT_COOLDOWN: Final = 300
PAUSES: Final = tuple(
    f"autoscaling.keda.sh/{key}" for key in ("paused", "paused-replicas", "paused-scale-in", "paused-scale-out")
)
FORMULA_WORD: Final = re.compile(r"(?<![\w.\"'])[A-Za-z_]\w*(?!\w*\s*\()")
FORMULA_WORDS: Final = frozenset({"true", "false", "nil", "and", "or", "not", "in", "let"})


def modifiers(scaled: Part) -> Part:
    return scaled.get("spec", "advanced", "scalingModifiers")


@rule(
    "PL420", "warning", "no fallback", "ScaledObject",
    why="""When a trigger's source cannot be reached, the HPA has no metric and keeps the count as it is, whatever the
        load does, for as long as the outage lasts. A fallback says how many replicas are safe when nobody can
        measure.""",
    fix="""
        fallback: {failureThreshold: 3, replicas: 2, behavior: currentReplicasIfHigher}""",
)  # fmt: skip
def no_fallback(scaled: Part, _: LintContext) -> Hits:
    polled = [trigger for trigger in triggers(scaled) if trigger.get("type").text() not in {*RESOURCE_TYPES, "cron"}]
    if polled and not scaled.get("spec", "fallback"):
        yield scaled.get("spec"), "no fallback: when the triggers cannot be read, the replica count is frozen"


@rule(
    "PL421", "error", "fallback that covers no trigger", "ScaledObject",
    why="""A fallback works on external metrics only. cpu and memory come from the metrics server, past KEDA; with
        nothing else KEDA's webhook refuses the object.""",
    fix="""
        # delete spec.fallback, or add a trigger that KEDA itself reads (prometheus, external-push, …)""",
)  # fmt: skip
def fallback_on_resources(scaled: Part, _: LintContext) -> Hits:
    fallback, types = scaled.get("spec", "fallback"), {trigger.get("type").text() for trigger in triggers(scaled)}
    if fallback and types and types <= RESOURCE_TYPES:
        yield fallback, f"fallback has no effect on {' and '.join(sorted(types))} triggers; delete it"


@rule(
    "PL422", "error", "fallback switched off by a fractional target", "ScaledObject",
    why="""With scalingModifiers, KEDA computes the fallback from the target parsed as a whole number. "0.5" does not
        parse, and the fallback is silently skipped: the error reaches the HPA as if none were set.""",
    fix="""
        advanced:
          scalingModifiers: {formula: "p95 * 1000", target: "500"}    # milliseconds, not 0.5 seconds""",
)  # fmt: skip
def fractional_target(scaled: Part, _: LintContext) -> Hits:
    target = modifiers(scaled).get("target")
    if scaled.get("spec", "fallback") and target and not re.fullmatch(r"\+?0*[1-9]\d*", target.text()):
        yield target, f"target = {target.text()}, must be a whole number above 0 for the fallback; scale the formula"


@rule(
    "PL426", "error", "minimum above maximum", "ScaledObject", "HorizontalPodAutoscaler",
    why="""The API server or KEDA's webhook refuses the object. maxReplicaCount counts as 100 where it is not set.""",
    fix="""
        minReplicaCount: 1
        maxReplicaCount: 4""",
)  # fmt: skip
def min_above_max(scaler: Part, _: LintContext) -> Hits:
    suffix, most = ("Count", DEFAULT_MAXIMUM) if kind_of(scaler) == "ScaledObject" else ("s", 0)
    low, high = scaler.get("spec", f"minReplica{suffix}"), scaler.get("spec", f"maxReplica{suffix}")
    maximum = high.integer(most)
    if low and maximum and low.integer(0) > maximum:
        yield low, f"{low.key} = {low.text()} is above {high.key} = {maximum}"


@rule(
    "PL431", "warning", "paused", "ScaledObject",
    why="""The annotation stops scaling until somebody removes it, also for every later deployment of the same file.
        paused-replicas: "0" keeps a service down whatever is asked of it.""",
    fix="""
        kubectl annotate scaledobject my-model autoscaling.keda.sh/paused-""",
)  # fmt: skip
def paused(scaled: Part, _: LintContext) -> Hits:
    for key in PAUSES:
        pause = scaled.get("metadata", "annotations", key)
        if pause and (key.endswith("-replicas") or pause.boolean(default=True)):
            yield pause, f"{key} = {pause.text()} stops autoscaling; remove it from the file when the pause is over"


@rule(
    "PL432", "warning", "no maximum", "ScaledObject",
    why="""maxReplicaCount is 100 unless set. One slow dependency or a wrong query is enough to ask for a hundred
        replicas, each with its GPU.""",
    fix="""
        maxReplicaCount: 4""",
)  # fmt: skip
def no_maximum(scaled: Part, _: LintContext) -> Hits:
    if scaled.get("spec") and not scaled.get("spec", "maxReplicaCount"):
        yield scaled.get("spec"), f"maxReplicaCount is not set and counts as {DEFAULT_MAXIMUM}; set what you can afford"


@rule(
    "PL433", "warning", "latency may run away to the maximum", "ScaledObject",
    why="""Latency is not proportional to replicas: near saturation it explodes, and below the time that one request
        needs no replica count brings it. Without a scale-up policy the HPA may double every 15 s, faster than a model
        loads, and goes on until the maximum.""",
    fix="""
        advanced:
          horizontalPodAutoscalerConfig:
            behavior:
              scaleUp: {policies: [{type: Pods, value: 1, periodSeconds: 120}]}
              scaleDown: {stabilizationWindowSeconds: 600}""",
)  # fmt: skip
def unbounded_latency(scaled: Part, _: LintContext) -> Hits:
    config = scaled.get("spec", "advanced", "horizontalPodAutoscalerConfig")
    if any(latency_triggers(scaled)) and not config.get("behavior", "scaleUp", "policies"):
        message = "a latency trigger without behavior.scaleUp.policies can run away to the maximum; bound its steps"
        yield next(latency_triggers(scaled)), message


@rule(
    "PL434", "warning", "HTTPScaledObject", "HTTPScaledObject",
    why="""HTTPScaledObject is slated for removal since version 0.14 of the HTTP add-on, and it owns the ScaledObject
        that it makes, so no latency trigger can stand beside it. InterceptorRoute holds only the routing; the
        ScaledObject is yours.""",
    fix="""
        apiVersion: http.keda.sh/v1beta1
        kind: InterceptorRoute
        spec:
          target: {service: my-model, port: 80}
          rules: [{hosts: [my-model.example.com]}]
          scalingMetric: {concurrency: {targetValue: 10}}""",
)  # fmt: skip
def http_scaled_object(scaled: Part, _: LintContext) -> Hits:
    yield scaled.get("kind"), "deprecated; write an InterceptorRoute and a ScaledObject with an external-push trigger"


@rule(
    "PL435", "error", "an HPA beside another autoscaler on one target", "HorizontalPodAutoscaler",
    why="""KEDA makes an HPA of its own for each ScaledObject. Two HPAs on one target each set their own count and undo
        the other's, every 15 s; KEDA's webhook refuses the ScaledObject where it sees the HPA first.""",
    fix="""
        # delete the HPA and add its metrics as triggers: {type: cpu, metricType: Utilization, …}""",
)  # fmt: skip
def hpa_conflict(hpa: Part, context: LintContext) -> Hits:
    if hpa.get("metadata", "annotations", "validations.keda.sh/hpa-ownership").text() == "false":
        return
    for other, earlier in rivals(hpa, context):
        if kind_of(other) == "ScaledObject" or earlier:
            message = f"{target_text(hpa)} is also scaled by {kind_of(other)} {name(other)}; keep one of them"
            yield hpa.get("spec", "scaleTargetRef"), message


@rule(
    "PL436", "error", "two ScaledObjects on one target", "ScaledObject",
    why="""Each ScaledObject gets its own HPA, and both write the replica count of the same target. KEDA's webhook
        refuses the second.""",
    fix="""
        # one ScaledObject with the triggers of both: the largest count of any trigger wins""",
)  # fmt: skip
def two_scaled_objects(scaled: Part, context: LintContext) -> Hits:
    for other, earlier in rivals(scaled, context):
        if kind_of(other) == "ScaledObject" and earlier:
            message = f"{target_text(scaled)} is also scaled by ScaledObject {name(other)}; merge their triggers"
            yield scaled.get("spec", "scaleTargetRef"), message


@rule(
    "PL437", "error", "formula with an unknown trigger", "ScaledObject",
    why="""A formula refers to triggers by their `name`; cpu and memory cannot take part. KEDA's webhook compiles the
        formula and refuses what it cannot find, as it does a formula without a target.""",
    fix="""
        advanced: {scalingModifiers: {formula: "max(p95, queue)", target: "10"}}
        triggers: [{name: p95, …}, {name: queue, …}]""",
)  # fmt: skip
def formula_names(scaled: Part, _: LintContext) -> Hits:
    formula, target = modifiers(scaled).get("formula"), modifiers(scaled).get("target")
    named = {
        trigger.get("name").text() for trigger in triggers(scaled) if trigger.get("type").text() not in RESOURCE_TYPES
    }
    bare = re.sub(r"\"[^\"]*\"|'[^']*'", "", formula.text())
    for word in sorted({*FORMULA_WORD.findall(bare)} - named - FORMULA_WORDS):
        yield formula, f"the formula uses {word}, which is the name of no trigger that it can use"
    if formula and not target:
        yield formula, "the formula needs a target beside it"


@rule(
    "PL438", "error", "name too long for its HPA", "ScaledObject",
    why="""The HPA is called keda-hpa-NAME and its name becomes a label value of at most 63 characters.""",
    fix="""
        advanced: {horizontalPodAutoscalerConfig: {name: short-name}}""",
)  # fmt: skip
def long_name(scaled: Part, _: LintContext) -> Hits:
    hpa_name = scaled.get("spec", "advanced", "horizontalPodAutoscalerConfig", "name")
    length = len(hpa_name.text() or f"keda-hpa-{name(scaled)}")
    if length > 63:
        message = f"the HPA's name has {length} characters, at most 63 are allowed"
        yield hpa_name or scaled.get("metadata", "name"), message


def rivals(scaler: Part, context: LintContext) -> Iterator[tuple[Part, bool]]:
    """Yield other autoscalers of the same target, and whether each comes first: a pair is reported once."""
    wanted, earlier = target_key(scaler), True
    for other in context.of_kind(*AUTOSCALERS):
        if other is scaler:
            earlier = False
        elif wanted[2] and target_key(other) == wanted:
            yield other, earlier


def target_text(scaler: Part) -> str:
    return " ".join(target_key(scaler)[1:])


@rule(
    "PL423", "error", "latency alone cannot wake from zero", "ScaledObject",
    why="""At zero replicas nothing serves, so there is no latency: the query is empty or 0, which is not above the
        activation threshold, and the service never wakes again. Something in front of it must count requests: an
        ingress or gateway metric, or the HTTP add-on's external-push trigger.""",
    fix="""
        triggers:
        - type: external-push
          metadata: {scalerAddress: "keda-add-ons-http-external-scaler.keda:9090", interceptorRoute: my-model}
        - {type: prometheus, metricType: Value, metadata: {…}}        # or else: minReplicaCount: 1""",
)  # fmt: skip
def latency_cannot_wake(scaled: Part, _: LintContext) -> Hits:
    latency, every = list(latency_triggers(scaled)), list(triggers(scaled))
    idle = scaled.get("spec", "idleReplicaCount")
    if latency and len(latency) == len(every) and (least(scaled) == 0 or idle.integer(1) == 0):
        minimum = scaled.get("spec", "minReplicaCount")
        message = (
            f"minReplicaCount {least(scaled)}{'' if minimum else ' (the default)'} with latency triggers only: at zero"
            " replicas there is no latency, so nothing ever wakes it; add a trigger that counts requests"
        )
        yield minimum or scaled.get("spec"), message


@rule(
    "PL424", "error", "cpu and memory alone cannot scale to zero", "ScaledObject",
    why="""A pod that does not run uses no cpu, so these triggers can never say when to start one; they count as always
        active. KEDA's webhook refuses minReplicaCount 0 (its default) with them alone.""",
    fix="""
        minReplicaCount: 1""",
)  # fmt: skip
def resources_cannot_wake(scaled: Part, _: LintContext) -> Hits:
    types = {trigger.get("type").text() for trigger in triggers(scaled)}
    if types and types <= RESOURCE_TYPES and least(scaled) == 0:
        minimum = scaled.get("spec", "minReplicaCount")
        message = "minReplicaCount 0 with cpu/memory triggers only never scales to zero; write 1"
        yield minimum or scaled.get("spec"), message


@rule(
    "PL425", "error", "idleReplicaCount other than 0, or not below the minimum", "ScaledObject",
    why="""The HPA brings any count above 0 back to minReplicaCount, so 0 is the only value that works; KEDA's webhook
        refuses one that is not below minReplicaCount.""",
    fix="""
        idleReplicaCount: 0
        minReplicaCount: 2""",
)  # fmt: skip
def idle_count(scaled: Part, _: LintContext) -> Hits:
    idle = scaled.get("spec", "idleReplicaCount")
    if idle and idle.integer(-1) != 0:
        yield idle, f"idleReplicaCount = {idle.text()}, must be 0: the HPA overrides anything above"
    elif idle and least(scaled) <= 0:
        yield idle, f"idleReplicaCount = 0 must be below minReplicaCount = {least(scaled)}; delete it"


@rule(
    "PL427", "warning", "cooldown shorter than the start", "ScaledObject",
    why="""cooldownPeriod counts from the last moment a trigger was active, also while the pod still starts. A request
        that gave up waiting leaves a pod that is removed before it was ever ready, and the next one begins anew.""",
    fix="""
        cooldownPeriod: 900         # longer than the startup probe allows""",
)  # fmt: skip
def short_cooldown(scaled: Part, context: LintContext) -> Hits:
    target, cooldown = target_of(scaled, context), scaled.get("spec", "cooldownPeriod")
    budget = startup_budget(target) if target else 0.0
    if least(scaled) == 0 and cooldown.integer(DEFAULT_COOLDOWN) < budget:
        period = f"cooldownPeriod {cooldown.integer(DEFAULT_COOLDOWN)} s"
        message = (
            f"{period} is shorter than the {budget:g} s that the startup probe of its target allows; make it longer"
        )
        yield cooldown or scaled.get("spec"), message


@rule(
    "PL428", "warning", "scaled to zero before the first load", "ScaledObject",
    why="""initialCooldownPeriod is 0 unless set: a workload that was just created and has had no request yet goes to
        zero at the first poll, in the middle of its first model load, so a deployment never sees it become ready.""",
    fix="""
        initialCooldownPeriod: 900      # longer than the first load of the model""",
)  # fmt: skip
def no_initial_cooldown(scaled: Part, context: LintContext) -> Hits:
    target, cooldown = target_of(scaled, context), scaled.get("spec", "initialCooldownPeriod")
    budget = startup_budget(target) if target else 0.0
    if least(scaled) > 0:
        return
    if cooldown.integer(0) <= 0:
        message = "initialCooldownPeriod is 0: goes to zero during its first load; set it longer than the load takes"
        yield cooldown or scaled.get("spec"), message
    elif cooldown.integer(0) < budget:
        period = f"initialCooldownPeriod {cooldown.integer(0)} s"
        yield cooldown, f"{period} is shorter than its target's startup budget, {budget:g} s"


@rule(
    "PL429", "warning", "polling too seldom or too often", "ScaledObject",
    why="""From zero, a request waits up to pollingInterval before KEDA even looks: it is part of every cold start,
        unless a trigger pushes. Below 5 s each ScaledObject asks its sources more often than Prometheus scrapes.""",
    fix="""
        pollingInterval: 15""",
)  # fmt: skip
def polling(scaled: Part, _: LintContext) -> Hits:
    setting = scaled.get("spec", "pollingInterval")
    interval = setting.integer(DEFAULT_POLLING)
    if setting and interval < 5:
        yield setting, f"pollingInterval = {interval}, asks more often than metrics are scraped; write 5 or more"
    elif setting and interval > 60 and least(scaled) == 0 and not any(triggers(scaled, "external-push")):
        yield setting, f"pollingInterval = {interval}, adds up to {interval} s to each cold start; write 30 or less"


@rule(
    "PL430", "info", "timing without effect above zero", "ScaledObject",
    why="""cooldownPeriod and pollingInterval govern only the step between zero and one. With minReplicaCount 1 or more
        the HPA decides alone, every 15 s, and scales down by its own stabilisation window.""",
    fix="""
        advanced:
          horizontalPodAutoscalerConfig:
            behavior: {scaleDown: {stabilizationWindowSeconds: 600}}""",
)  # fmt: skip
def timing_without_effect(scaled: Part, _: LintContext) -> Hits:
    spec = scaled.get("spec")
    cached = any(trigger.get("useCachedMetrics").boolean(default=False) for trigger in triggers(scaled))
    if least(scaled) < 1 or spec.get("idleReplicaCount"):
        return
    if spec.get("cooldownPeriod"):
        yield spec.get("cooldownPeriod"), f"cooldownPeriod has no effect with minReplicaCount {least(scaled)}"
    if spec.get("pollingInterval") and not cached and not scaled.get("spec", "advanced", "scalingModifiers"):
        message = f"pollingInterval has no effect on scaling with minReplicaCount {least(scaled)}"
        yield spec.get("pollingInterval"), message
