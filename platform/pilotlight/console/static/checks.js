// The checks of a canary, each with its bound, its last value and the baseline's, its verdict and its query.

import { el, keyed, put, row, say, table } from "./dom.js";
import { NOTHING, clock, milliseconds, percent } from "./format.js";
import { phase } from "./phases.js";
import { spark } from "./spark.js";

const HEADINGS = ["Check", "Bound", "Canary", "Stable", "Verdict", "Requests", "Measured", "Values"];

export function checksTable() {
    const listing = table("Checks", HEADINGS);
    const update = keyed(listing.body, checkRow);
    const empty = el("p", { class: "empty" }, "No measurements yet.");
    return {
        node: el("div", {}, listing.node, empty),
        update(canary) {
            const rows = rowsOf(canary);
            update(rows, (each) => each.name);
            empty.hidden = rows.length > 0;
        },
    };
}

// The checks of the policy, and further ones that have measurements.
function rowsOf(canary) {
    const declared = new Map(canary.policy.checks.map((check) => [check.name, check]));
    const names = new Set([...declared.keys(), ...canary.measurements.map((each) => each.check)]);
    return [...names].map((name) => {
        const measured = canary.measurements.filter((each) => each.check === name);
        return { name, check: declared.get(name) ?? {}, ratio: canary.policy.ratio, measured, last: measured.at(-1) };
    });
}

// `p99_ms vs baseline` has the unit of `p99_ms`.
function figureOf(name, value) {
    if (value === null || value === undefined) return NOTHING;
    const [kind] = name.split(" ");
    if (kind.endsWith("_ms")) return milliseconds(value);
    if (kind.endsWith("_rate")) return percent(100 * value);
    return String(Number(value.toPrecision(4)));
}

function boundOf(name, check, ratio) {
    const told = [];
    if (check.maximum !== null && check.maximum !== undefined) told.push(`< ${figureOf(name, check.maximum)}`);
    if (check.minimum !== null && check.minimum !== undefined) told.push(`> ${figureOf(name, check.minimum)}`);
    return told.join(", ") || `≤ ${ratio} × stable`;
}

function checkRow(first) {
    const verdict = phase();
    const texts = Array.from({ length: 5 }, () => el("span", { class: "figure" }));
    const [bound, value, baseline, requests, when] = texts;
    const reason = el("span", { class: "reasontext" });
    const query = el("code", { class: "query" });
    const asked = el("details", {}, el("summary", {}, "query"), query);
    const values = spark(`values of ${first.name}`);
    const cells = [
        el("div", {}, el("code", {}, first.name), asked),
        bound,
        value,
        baseline,
        el("div", {}, verdict.node, reason),
        requests,
        when,
        values.node,
    ];
    const update = ({ name, check, ratio, measured, last }) => {
        say(bound, boundOf(name, check, ratio));
        say(value, figureOf(name, last?.value));
        say(baseline, figureOf(name, last?.baseline));
        verdict.update(last?.verdict ?? "Pending");
        say(reason, last?.reason ?? "");
        say(requests, last?.requests ?? 0);
        say(when, last ? clock(last.at) : NOTHING);
        say(query, last?.query || check.query || "");
        put(asked, "hidden", !(last?.query || check.query));
        const figures = measured.map((each) => each.value).filter((each) => each !== null && each !== undefined);
        values.draw([...figures.keys()], figures, check.maximum ?? null);
    };
    return { node: row(HEADINGS, cells), update };
}
