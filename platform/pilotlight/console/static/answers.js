// The response of a model: outputs as rows, a few numbers as bars, the whole document below.

import { el, row, svg, table } from "./dom.js";
import { milliseconds } from "./format.js";
import { phase } from "./phases.js";

const HEADINGS = ["Output", "Type", "Shape", "Values"];
const MOST_BARS = 20;
const MOST_SHOWN = 400;

export function answerOf(told) {
    const state = phase();
    state.update(told.status < 300 ? "Ready" : "Failed");
    state.node.lastChild.textContent = told.status < 300 ? `Status ${told.status}` : `Error ${told.status}`;
    const woken = told.cold_start_ms ? ` · after a cold start of ${milliseconds(Number(told.cold_start_ms))}` : "";
    const document_ = parsed(told.body);
    const listing = table("Outputs", HEADINGS);
    listing.body.append(...(document_?.outputs ?? []).map(outputRow));
    const problem = told.status < 300 ? "" : reasonOf(told.body);
    return el(
        "section",
        { class: "card stack answer" },
        el(
            "div",
            { class: "line thin" },
            state.node,
            el("span", { class: "faint figure" }, `${milliseconds(told.ms)}${woken}`),
        ),
        problem ? el("p", { class: "refusal" }, problem) : null,
        document_?.outputs ? listing.node : null,
        el(
            "details",
            {},
            el("summary", {}, "Raw response"),
            el("pre", { tabindex: "0" }, document_ ? JSON.stringify(document_, null, 2).slice(0, 100000) : told.body),
        ),
    );
}

export function errorOf(status, body) {
    return `The service responded with ${status}: ${reasonOf(body)}`;
}

// The sentence of an error body of V2, V1 or OpenAI's API.
function reasonOf(body) {
    const { error, message } = parsed(body) ?? {};
    return String(error?.message ?? error ?? message ?? body).slice(0, 500);
}

function parsed(text) {
    try {
        const found = JSON.parse(text);
        return found !== null && typeof found === "object" ? found : null;
    } catch {
        return null;
    }
}

function outputRow(output) {
    const data = output.data ?? [];
    return row(HEADINGS, [
        el("code", {}, output.name),
        output.datatype,
        el("span", { class: "figure" }, `[${output.shape.join(", ")}]`),
        valuesOf(output, data),
    ]);
}

function valuesOf(output, data) {
    const fractions =
        /^(FP|BF)/.test(output.datatype) &&
        data.length > 1 &&
        data.length <= MOST_BARS &&
        data.every((each) => each >= 0 && each <= 1);
    if (fractions) return el("ol", { class: "bars", start: 0 }, data.map(share));
    const told = data.map((each) => (typeof each === "string" ? each : JSON.stringify(each))).join(", ");
    return el(
        "code",
        { class: "values" },
        told.length > MOST_SHOWN ? `${told.slice(0, MOST_SHOWN)}… (${data.length} values)` : told,
    );
}

function share(value) {
    const bar = svg(
        "svg",
        { class: "bar", viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" },
        svg("rect", { x: 0, y: 0, width: 100 * value, height: 10, class: "part0" }),
    );
    return el("li", {}, el("span", { class: "figure" }, value.toPrecision(4)), bar);
}
