// Overview of a service: its history as charts, revisions, scaling, cold starts.

import { bar } from "./bars.js";
import { el, fill, keyed, row, say, table } from "./dom.js";
import { milliseconds, percent, replicas, short } from "./format.js";
import { serviceHistory } from "./history.js";
import { phase } from "./phases.js";
import { scaling } from "./scaling.js";
import { whatIf } from "./what_if.js";

const HEADINGS = ["Revision", "Traffic", "Replicas", "Model", "p50", "p99", "Errors", "Requests", "Cold starts"];

export function revisionsTab(id) {
    const history = serviceHistory(id);
    const listing = table("Revisions", HEADINGS);
    listing.body.closest("table").classList.add("revisions");
    let latest = null;
    const update = keyed(listing.body, () => revisionRow(() => latest));
    const scale = scaling(id);
    const simulation = whatIf(id);
    const starts = el("div", { class: "starts" });
    const node = el(
        "div",
        { class: "stack" },
        history.node,
        el("section", { class: "card flush" }, el("h2", {}, "Revisions"), listing.node),
        scale.node,
        simulation.node,
        el("section", { class: "card" }, el("h2", {}, "Latest cold start, by phase"), starts),
    );
    return {
        node,
        update(service) {
            latest = service;
            update(service.revisions, (each) => each.name);
            scale.update(service);
            drawStarts(starts, service);
        },
        leave() {
            history.leave();
            scale.leave();
            simulation.leave();
        },
    };
}

function revisionRow(service) {
    const model = phase();
    const texts = Array.from({ length: 8 }, () => el("span", { class: "figure" }));
    const [share, count, p50, p99, errors, requests, cold, reason] = texts;
    const name = el("code", {});
    const tags = el("span", { class: "faint" });
    reason.className = "reasontext";
    const cells = [
        el("div", {}, name, tags),
        share,
        count,
        el("div", {}, model.node, reason),
        p50,
        p99,
        errors,
        requests,
        cold,
    ];
    const update = (each) => {
        say(name, short(service(), each.name));
        name.title = each.name;
        say(tags, each.tags.map((tag) => ` @${tag}`).join(""));
        say(share, `${each.percent} %`);
        say(count, replicas(each.ready, each.desired, each.starting));
        model.update(each.model_state);
        say(reason, each.reason);
        say(p50, milliseconds(each.p50_ms));
        say(p99, milliseconds(each.p99_ms));
        say(errors, percent(each.error_percent));
        say(requests, each.requests);
        say(cold, each.cold_starts);
    };
    return { node: row(HEADINGS, cells), update };
}

// Redrawn only if a figure differs, so that nothing flickers.
function drawStarts(node, service) {
    const known = service.revisions.filter((each) => Object.keys(each.cold_start).length);
    const told = JSON.stringify(known.map((each) => [each.name, each.cold_start]));
    if (node.dataset.told === told) return;
    node.dataset.told = told;
    if (!known.length) fill(node, el("p", { class: "faint" }, "No completed cold start is recorded."));
    else
        fill(
            node,
            known.map((each) => start(service, each)),
        );
}

function start(service, revision) {
    const { total: measured, ...phases } = revision.cold_start;
    const parts = Object.entries(phases).map(([name, value]) => ({ name, value, told: milliseconds(1000 * value) }));
    const whole = measured ?? parts.reduce((sum, part) => sum + part.value, 0);
    const legend = parts.map((part, index) =>
        el(
            "li",
            {},
            el("span", { class: `key part${index % 6}` }),
            part.name,
            el("span", { class: "figure faint" }, part.told),
        ),
    );
    return el(
        "div",
        { class: "start" },
        el(
            "div",
            { class: "line thin" },
            el("code", {}, short(service, revision.name)),
            el("strong", { class: "figure" }, milliseconds(1000 * whole)),
        ),
        bar(`Cold start of ${revision.name}`, parts),
        el("ul", { class: "legend" }, legend),
    );
}
