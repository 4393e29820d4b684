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


@rule("PL420")
def no_fallback(scaled: Part, _: LintContext) -> Hits:
    polled = [trigger for trigger in triggers(scaled) if trigger.get("type").text() not in {*RESOURCE_TYPES, "cron"}]
    if polled and not scaled.get("spec", "fallback"):
        yield scaled.get("spec"), "no fallback: while the triggers cannot be read, the replica count is frozen; add one"


@rule("PL421")
def fallback_on_resources(scaled: Part, _: LintContext) -> Hits:
    fallback, types = scaled.get("spec", "fallback"), {trigger.get("type").text() for trigger in triggers(scaled)}
    if fallback and types and types <= RESOURCE_TYPES:
        yield fallback, f"fallback has no effect on {' and '.join(sorted(types))} triggers; delete it"


@rule("PL422")
def fractional_target(scaled: Part, _: LintContext) -> Hits:
    target = modifiers(scaled).get("target")
    if scaled.get("spec", "fallback") and target and not re.fullmatch(r"\+?0*[1-9]\d*", target.text()):
        yield target, f"target = {target.text()}, must be a whole number above 0 for the fallback; scale the formula"


@rule("PL426")
def min_above_max(scaler: Part, _: LintContext) -> Hits:
    suffix, most = ("Count", DEFAULT_MAXIMUM) if kind_of(scaler) == "ScaledObject" else ("s", 0)
    low, high = scaler.get("spec", f"minReplica{suffix}"), scaler.get("spec", f"maxReplica{suffix}")
    maximum = high.integer(most)
    if low and maximum and low.integer(0) > maximum:
        yield low, f"{low.key} = {low.text()} is above {high.key} = {maximum}; lower it"


@rule("PL431")
def paused(scaled: Part, _: LintContext) -> Hits:
    for key in PAUSES:
        pause = scaled.get("metadata", "annotations", key)
        if pause and (key.endswith("-replicas") or pause.boolean(default=True)):
            yield pause, f"{key} = {pause.text()} stops autoscaling; remove it from the manifest after the pause"


@rule("PL432")
def no_maximum(scaled: Part, _: LintContext) -> Hits:
    if scaled.get("spec") and not scaled.get("spec", "maxReplicaCount"):
        yield scaled.get("spec"), f"maxReplicaCount is not set, and its default is {DEFAULT_MAXIMUM}; set it"


@rule("PL433")
def unbounded_latency(scaled: Part, _: LintContext) -> Hits:
    config = scaled.get("spec", "advanced", "horizontalPodAutoscalerConfig")
    if any(latency_triggers(scaled)) and not config.get("behavior", "scaleUp", "policies"):
        message = "a latency trigger without behavior.scaleUp.policies can jump to the maximum; limit its steps"
        yield next(latency_triggers(scaled)), message


@rule("PL434")
def http_scaled_object(scaled: Part, _: LintContext) -> Hits:
    yield scaled.get("kind"), "deprecated; write an InterceptorRoute and a ScaledObject with an external-push trigger"


@rule("PL435")
def hpa_conflict(hpa: Part, context: LintContext) -> Hits:
    if hpa.get("metadata", "annotations", "validations.keda.sh/hpa-ownership").text() == "false":
        return
    for other, earlier in rivals(hpa, context):
        if kind_of(other) == "ScaledObject" or earlier:
            message = f"{target_text(hpa)} is also scaled by {kind_of(other)} {name(other)}; keep one of them"
            yield hpa.get("spec", "scaleTargetRef"), message


@rule("PL436")
def two_scaled_objects(scaled: Part, context: LintContext) -> Hits:
    for other, earlier in rivals(scaled, context):
        if kind_of(other) == "ScaledObject" and earlier:
            message = f"{target_text(scaled)} is also scaled by ScaledObject {name(other)}; merge their triggers"
            yield scaled.get("spec", "scaleTargetRef"), message


@rule("PL437")
def formula_names(scaled: Part, _: LintContext) -> Hits:
    formula, target = modifiers(scaled).get("formula"), modifiers(scaled).get("target")
    named = {
        trigger.get("name").text() for trigger in triggers(scaled) if trigger.get("type").text() not in RESOURCE_TYPES
    }
    bare = re.sub(r"\"[^\"]*\"|'[^']*'", "", formula.text())
    for word in sorted({*FORMULA_WORD.findall(bare)} - named - FORMULA_WORDS):
        yield formula, f"the formula uses {word}, but no external trigger has this name; rename one"
    if formula and not target:
        yield formula, "the formula has no target; add one"


@rule("PL438")
def long_name(scaled: Part, _: LintContext) -> Hits:
    hpa_name = scaled.get("spec", "advanced", "horizontalPodAutoscalerConfig", "name")
    length = len(hpa_name.text() or f"keda-hpa-{name(scaled)}")
    if length > 63:
        message = f"the HPA's name has {length} characters, at most 63 are allowed; shorten it"
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


@rule("PL423")
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


@rule("PL424")
def resources_cannot_wake(scaled: Part, _: LintContext) -> Hits:
    types = {trigger.get("type").text() for trigger in triggers(scaled)}
    if types and types <= RESOURCE_TYPES and least(scaled) == 0:
        minimum = scaled.get("spec", "minReplicaCount")
        message = "minReplicaCount 0 with cpu/memory triggers only never scales to zero; write 1"
        yield minimum or scaled.get("spec"), message


@rule("PL425")
def idle_count(scaled: Part, _: LintContext) -> Hits:
    idle = scaled.get("spec", "idleReplicaCount")
    if idle and idle.integer(-1) != 0:
        yield idle, f"idleReplicaCount = {idle.text()}, must be 0: the HPA overrides anything above"
    elif idle and least(scaled) <= 0:
        yield idle, f"idleReplicaCount = 0 must be below minReplicaCount = {least(scaled)}; delete it"


@rule("PL427")
def short_cooldown(scaled: Part, context: LintContext) -> Hits:
    target, cooldown = target_of(scaled, context), scaled.get("spec", "cooldownPeriod")
    budget = startup_budget(target) if target else 0.0
    if least(scaled) == 0 and cooldown.integer(DEFAULT_COOLDOWN) < budget:
        period = f"cooldownPeriod {cooldown.integer(DEFAULT_COOLDOWN)} s"
        message = (
            f"{period} is shorter than the {budget:g} s that the startup probe of its target allows; make it longer"
        )
        yield cooldown or scaled.get("spec"), message


@rule("PL428")
def no_initial_cooldown(scaled: Part, context: LintContext) -> Hits:
    target, cooldown = target_of(scaled, context), scaled.get("spec", "initialCooldownPeriod")
    budget = startup_budget(target) if target else 0.0
    if least(scaled) > 0:
        return
    if cooldown.integer(0) <= 0:
        message = "initialCooldownPeriod is 0: scales to zero during its first load; set it above the load time"
        yield cooldown or scaled.get("spec"), message
    elif cooldown.integer(0) < budget:
        period = f"initialCooldownPeriod {cooldown.integer(0)} s"
        yield cooldown, f"{period} is shorter than the {budget:g} s that its target takes to start; raise it"


@rule("PL429")
def polling(scaled: Part, _: LintContext) -> Hits:
    setting = scaled.get("spec", "pollingInterval")
    interval = setting.integer(DEFAULT_POLLING)
    if setting and interval < 5:
        yield setting, f"pollingInterval = {interval}, polls more often than metrics are scraped; write 5 or more"
    elif setting and interval > 60 and least(scaled) == 0 and not any(triggers(scaled, "external-push")):
        yield setting, f"pollingInterval = {interval}, adds up to {interval} s to each cold start; write 30 or less"


@rule("PL430")
def timing_without_effect(scaled: Part, _: LintContext) -> Hits:
    spec = scaled.get("spec")
    cached = any(trigger.get("useCachedMetrics").boolean(default=False) for trigger in triggers(scaled))
    if least(scaled) < 1 or spec.get("idleReplicaCount"):
        return
    effect = f"has no effect with minReplicaCount {least(scaled)}; delete it"
    if spec.get("cooldownPeriod"):
        yield spec.get("cooldownPeriod"), f"cooldownPeriod {effect}"
    if spec.get("pollingInterval") and not cached and not scaled.get("spec", "advanced", "scalingModifiers"):
        yield spec.get("pollingInterval"), f"pollingInterval {effect}"
