// What if: the recorded requests replayed against other scaling settings, beside what happened.

import { chart } from "./chart.js";
import { el, say } from "./dom.js";
import { RANGES } from "./history.js";
import { doing } from "./notices.js";
import { ask, pathOf } from "./session.js";

// By their names in a manifest, with what a keyboard on the screen offers.
const FIELDS = [
    ["minReplicas", "numeric"],
    ["maxReplicas", "numeric"],
    ["scaleTarget", "numeric"],
    ["window", "text"],
];
const CHARTS = [
    ["Predicted replicas", { whole: true }, "ready", { steps: true }],
    ["Predicted p99", { unit: "ms" }, "p99_ms", { sparse: true }],
];

export function whatIf(id) {
    const fields = FIELDS.map(([name, inputmode]) => {
        const input = el("input", { id: `what-if-${name}`, class: "narrow", inputmode, placeholder: name === "window" ? "60s" : "" });
        return { name, input, node: el("label", { for: input.id }, `${name} `, input) };
    });
    const range = el(
        "select",
        { id: "what-if-range" },
        RANGES.map((each) => el("option", { value: each.seconds }, each.label)),
    );
    const pressed = el("button", { class: "first" }, "Simulate");
    const form = el(
        "form",
        { class: "line thin", onsubmit: submit },
        el("label", { for: range.id }, "Requests of the last ", range),
        fields.map((each) => each.node),
        pressed,
    );
    const summary = el(
        "p",
        { class: "faint", role: "status" },
        "Replays the recorded requests against other settings; an empty field is as in the manifest.",
    );
    const drawn = CHARTS.map(([title, options]) => chart(title, { ...options, group: `${id} what-if` }));
    const charts = el(
        "div",
        { class: "charts", hidden: true },
        drawn.map((each) => each.node),
    );
    const node = el("section", { class: "stack" }, el("h2", {}, "What if"), form, summary, charts);

    async function submit(event) {
        event.preventDefault();
        const query = new URLSearchParams({ seconds: range.value });
        for (const { name, input } of fields) if (input.value.trim()) query.set(name, input.value.trim());
        await doing(pressed, async () => draw(await ask("GET", `${pathOf(id)}/what-if?${query}`)), "Simulated.");
    }

    function draw(result) {
        charts.hidden = false;
        CHARTS.forEach(([, , column, look], index) => {
            const lines = [
                { label: "predicted", values: result[column], ...look },
                { label: "recorded", values: result[`recorded_${column}`], dashed: true, ...look },
            ];
            drawn[index].update(result.at, lines, result.end);
        });
        const [now, then] = [result.recorded_replica_seconds, Math.round(result.replica_seconds)];
        const starts = `${result.cold_starts} replica starts`;
        const text = `${result.requests} requests: ${then} replica-seconds, ${now} recorded; ${starts}.`;
        say(summary, [text, ...result.assumptions].join(" "));
    }

    return { node, leave: () => drawn.forEach((each) => each.leave()) };
}
