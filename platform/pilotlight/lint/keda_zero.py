"""Rules for scaling a KEDA ScaledObject to and from zero: activation, cooldown, polling."""

from typing import Final

from pilotlight.lint.keda_triggers import RESOURCE_TYPES, latency_triggers, least, triggers
from pilotlight.lint.objects import startup_budget, target_of
from pilotlight.lint.parts import Part
from pilotlight.lint.rule import Hits, LintContext, rule

DEFAULT_POLLING: Final = 30
DEFAULT_COOLDOWN: Final = 300


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
        part = cooldown if cooldown else scaled.get("spec")
        message = (
            f"cooldownPeriod {cooldown.integer(DEFAULT_COOLDOWN)} s is shorter than the {budget:g} s that the startup"
            " probe of its target allows; make it longer"
        )
        yield part, message


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
        message = (
            f"initialCooldownPeriod {cooldown.integer(0)} s is shorter than its target's startup budget, {budget:g} s"
        )
        yield cooldown, message


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
