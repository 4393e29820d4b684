// How many replicas and why: the last decision of each revision, those before it, and bounds that a person sets.

import { button, el, keyed, row, say, table } from "./dom.js";
import { clock, dateAndClock, short } from "./format.js";
import { doing } from "./notices.js";
import { ask, pathOf } from "./session.js";
import { events, listen } from "./state.js";

const HEADINGS = ["When", "What", "Why"];
const SHOWN = 12;

export function scaling(id) {
    const [least, most] = [bound("Least", "least"), bound("Most", "most")];
    const byHand = el("p", { class: "faint" });
    const set = el("button", { class: "first" }, "Set");
    const reset = button("As the document says", () => send(null, reset), {});
    const form = el("form", { class: "line thin", onsubmit: submit }, least.node, most.node, set, reset);
    const listing = table("Scaling decisions", HEADINGS);
    const update = keyed(listing.body, decisionRow);
    const empty = el("p", { class: "empty" }, "Nothing has been decided yet.");
    const node = el(
        "section",
        { class: "card flush" },
        el("h2", {}, "Scaling"),
        el("div", { class: "inner" }, form, byHand),
        listing.node,
        empty,
    );
    let latest = null;

    function submit(event) {
        event.preventDefault();
        const bounds = {};
        if (least.input.value !== "") bounds.minReplicas = Number(least.input.value);
        if (most.input.value !== "") bounds.maxReplicas = Number(most.input.value);
        send(bounds, set);
    }

    async function send(bounds, pressed) {
        const told = bounds ? "The bounds are set." : "The override is removed.";
        const done = await doing(pressed, () => ask("PUT", `${pathOf(id)}/scale`, bounds), told);
        if (done && !bounds) least.input.value = most.input.value = "";
    }

    function draw() {
        if (!latest) return;
        const set = Object.values(latest.overrides)
            .map((each) => [each.minReplicas, each.maxReplicas])
            .find((each) => each.some(Number.isInteger));
        say(
            byHand,
            set
                ? `Set by hand: least ${set[0] ?? "as documented"}, most ${set[1] ?? "as documented"}`
                : "As the document says.",
        );
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
    return { node: el("label", { for: `bound-${name}` }, `${label} replicas `, input), input };
}

// What holds now stands first; what was decided before is an event.
function decisions(service) {
    const current = service.revisions
        .filter((each) => each.decision)
        .map((each) => ({
            key: `now ${each.name}`,
            at: each.decided_at,
            what: `${short(service, each.name)}, holds`,
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
        say(when, each.at ? clock(each.at) : "since its start");
        when.title = each.at ? dateAndClock(each.at) : "";
        say(what, each.what);
        say(why, each.why);
    };
    return { node: row(HEADINGS, [when, what, why]), update };
}
