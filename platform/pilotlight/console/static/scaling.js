// Scaling: the last decision of each revision, those before it, and a form for the replica bounds.

import { button, el, keyed, row, say, table } from "./dom.js";
import { dateAndClock, short } from "./format.js";
import { doing } from "./notices.js";
import { ask, pathOf, session } from "./session.js";
import { events, listen } from "./state.js";

const HEADINGS = ["Time", "Revision", "Decision"];
const SHOWN = 12;

export function scaling(id) {
    const [least, most] = [bound("Min", "min"), bound("Max", "max")];
    const byHand = el("p", { class: "faint" });
    const set = el("button", { class: "first" }, "Scale");
    const reset = button("Reset to manifest", () => send(null, reset), {});
    const form = el("form", { class: "line thin change", onsubmit: submit }, least.node, most.node, set, reset);
    const listing = table("Scaling decisions", HEADINGS);
    const update = keyed(listing.body, decisionRow);
    const empty = el("p", { class: "empty" }, "No decisions yet.");
    const node = el(
        "section",
        { class: "card flush" },
        el("h2", {}, "Scaling"),
        el("div", { class: "inner" }, form, byHand),
        listing.node,
        empty,
    );
    let latest = null;
    let documented = { generation: null };

    function submit(event) {
        event.preventDefault();
        const bounds = {};
        if (least.input.value !== "") bounds.minReplicas = Number(least.input.value);
        if (most.input.value !== "") bounds.maxReplicas = Number(most.input.value);
        send(bounds, set);
    }

    async function send(bounds, pressed) {
        const told = bounds ? "Set the replica bounds." : "Reset the replica bounds to those of the manifest.";
        await doing(pressed, () => ask("PUT", `${pathOf(id)}/scale`, bounds), told);
        least.changed = most.changed = false;
        draw();
    }

    // The bounds of the manifest, again after each deploy.
    async function learn(generation) {
        if (session.readOnly || documented.generation === generation) return;
        documented = { generation };
        try {
            documented = { generation, ...(await ask("GET", `${pathOf(id)}/manifest`)).bounds };
        } catch {
            // A release that cannot be planned again has no bounds to show; the form still takes new ones.
        }
        draw();
    }

    function draw() {
        if (!latest) return;
        const set =
            Object.values(latest.overrides).find((each) => "minReplicas" in each || "maxReplicas" in each) ?? {};
        const bounds = { ...documented, ...set };
        for (const [field, name] of [
            [least, "minReplicas"],
            [most, "maxReplicas"],
        ])
            if (!field.changed) field.input.value = bounds[name] ?? "";
        const overridden = "minReplicas" in set || "maxReplicas" in set;
        const range = `min ${bounds.minReplicas ?? "default"}, max ${bounds.maxReplicas ?? "default"}`;
        say(byHand, overridden ? `Set manually: ${range}` : "Bounds of the manifest.");
        reset.disabled = !overridden;
        const all = decisions(latest);
        update(all, (each) => each.key);
        empty.hidden = all.length > 0;
    }

    const stopListening = listen((what) => what === "events" && draw());
    return {
        node,
        update(service) {
            latest = service;
            draw();
            learn(service.generation);
        },
        leave: stopListening,
    };
}

function bound(label, name) {
    const input = el("input", {
        type: "number",
        min: 0,
        max: 10000,
        id: `bound-${name}`,
        class: "narrow",
        inputmode: "numeric",
    });
    const field = { node: el("label", { for: `bound-${name}` }, `${label} replicas `, input), input, changed: false };
    input.addEventListener("input", () => (field.changed = true));
    return field;
}

// The current decisions first; earlier ones are events.
function decisions(service) {
    const current = service.revisions
        .filter((each) => each.decision)
        .map((each) => ({
            key: `now ${each.name}`,
            at: each.decided_at,
            what: `${short(service, each.name)} (current)`,
            why: each.decision,
        }));
    const before = events
        .filter((each) => each.reason === "Scaled" && `${each.namespace}/${each.service}` === service.id)
        .slice(-SHOWN)
        .reverse()
        .map((each) => ({ key: each.number, at: each.at, what: each.object.split("/").at(-1), why: each.message }));
    return [...current, ...before];
}

function decisionRow() {
    const [when, what, why] = [el("time", { class: "faint figure" }), el("code", {}), el("span", {})];
    const update = (each) => {
        say(when, each.at ? dateAndClock(each.at) : "since start");
        say(what, each.what);
        say(why, each.why);
    };
    return { node: row(HEADINGS, [when, what, why]), update };
}
