// All services, a row each, with their traffic as it comes; below them what happened last.

import { spark } from "./chart.js";
import { el, fill, keyed, row, say, table } from "./dom.js";
import { eventRow, EVENT_HEADINGS } from "./events.js";
import { milliseconds, percent, rate, replicas, total, worst } from "./format.js";
import { repeated } from "./history.js";
import { phase } from "./phases.js";
import { ask } from "./session.js";
import { events, link, listen, services } from "./state.js";

const HEADINGS = ["Service", "State", "Replicas", "Requests/s", "p50", "p99", "Errors", "Cold starts"];
const SHOWN_EVENTS = 8;
const TRAFFIC_S = 900;
const TRAFFIC_MS = 15000;
const TRAFFIC =
    "sum by (namespace, inference_service) (rate(pilotlight_request_duration_seconds_count[$__rate_interval]))";

export function overview() {
    const tiles = ["Services", "Ready replicas", "Requests/s", "Cold starts"].map(tile);
    const filter = el("input", {
        type: "search",
        placeholder: "Filter by name or state",
        "aria-label": "Filter services",
    });
    const listing = table("Services", HEADINGS);
    listing.body.closest("table").classList.add("services");
    const traffic = { at: [], series: new Map() };
    const update = keyed(listing.body, (each) => serviceRow(each, traffic));
    const empty = el("p", { class: "empty" });
    const happened = table("What happened last", EVENT_HEADINGS);
    const updateEvents = keyed(happened.body, eventRow);
    const node = el(
        "div",
        { class: "page" },
        el("div", { class: "line" }, el("h1", {}, "Services"), filter),
        el(
            "dl",
            { class: "tiles" },
            tiles.map((each) => each.node),
        ),
        el("section", { class: "card flush" }, listing.node, empty),
        el("h2", {}, "What happened last"),
        el("section", { class: "card flush" }, happened.node),
    );

    function draw() {
        const all = [...services.values()];
        const asked = filter.value.trim().toLowerCase();
        const shown = all.filter((each) => `${each.id} ${each.phase}`.toLowerCase().includes(asked));
        update(shown, (each) => each.id);
        tellEmpty(empty, all.length, shown.length);
        const sums = [all.length, sum(all, "ready"), rate(sum(all, "per_second")), sum(all, "cold_starts")];
        tiles.forEach((each, index) => say(each.value, link.heard ? sums[index] : "–"));
        updateEvents(events.slice(-SHOWN_EVENTS).reverse(), (each) => each.number);
    }

    const stopListening = listen(draw);
    const loop = repeated(async () => {
        const told = await ask("POST", "/v1/query_range", { query: TRAFFIC, seconds: TRAFFIC_S });
        traffic.at = told.at;
        traffic.series = new Map(
            told.series.map(({ labels, values }) => [`${labels.namespace}/${labels.inference_service}`, values]),
        );
        draw();
    }, TRAFFIC_MS);
    const keys = (event) => shortcut(event, filter, draw);
    filter.addEventListener("input", draw);
    document.addEventListener("keydown", keys);
    draw();
    loop.run();
    return {
        node,
        leave() {
            stopListening();
            loop.leave();
            document.removeEventListener("keydown", keys);
        },
    };
}

// `/` goes to the filter, Escape empties it.
function shortcut(event, filter, draw) {
    if (event.key === "/" && !/^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement?.tagName ?? "")) {
        event.preventDefault();
        filter.focus();
    } else if (event.key === "Escape" && document.activeElement === filter) {
        filter.value = "";
        draw();
    }
}

function tile(label) {
    const value = el("dd", {}, "–");
    return { node: el("div", { class: "tile" }, el("dt", {}, label), value), value };
}

function sum(all, field) {
    return all.reduce((found, each) => found + total(each, field), 0);
}

function tellEmpty(node, all, shown) {
    if (!link.heard) say(node, "Looking…");
    else if (all && !shown) say(node, "No service is called so.");
    else if (!all) fill(node, "Nothing is deployed yet: ", el("code", {}, "platformctl deploy -f service.yaml"));
    node.hidden = shown > 0;
}

function serviceRow(service, traffic) {
    const state = phase();
    const texts = Array.from({ length: 6 }, () => el("span", { class: "figure" }));
    const [count, requests, p50, p99, errors, cold] = texts;
    const line = spark("requests per second, last 15 minutes");
    const split = el("span", { class: "chip ember", hidden: true });
    const href = `#/services/${service.id.split("/").map(encodeURIComponent).join("/")}`;
    const name = el(
        "div",
        {},
        el("a", { href, class: "name" }, service.name),
        split,
        el("div", { class: "faint" }, service.namespace),
    );
    const why = el("div", { class: "why faint" });
    const cells = [
        name,
        el("div", {}, state.node, why),
        count,
        el("div", { class: "traffic" }, requests, line.node),
        p50,
        p99,
        errors,
        cold,
    ];
    const node = row(HEADINGS, cells);

    function update(now) {
        state.update(now.phase, now.message);
        say(why, now.message.replace(/^[a-z0-9.-]+-[0-9a-f]{8}: /, "")); // which revision is told on its page
        why.title = now.message;
        say(count, replicas(total(now, "ready"), total(now, "desired"), total(now, "starting")));
        say(requests, rate(total(now, "per_second")));
        const values = traffic.series.get(now.id);
        if (values) line.draw(traffic.at, values);
        say(p50, milliseconds(worst(now, "p50_ms")));
        say(p99, milliseconds(worst(now, "p99_ms")));
        say(errors, percent(worst(now, "error_percent")));
        say(cold, total(now, "cold_starts"));
        const shares = now.revisions
            .filter((each) => each.percent > 0 && each.percent < 100)
            .map((each) => each.percent);
        split.hidden = shares.length < 2;
        say(split, shares.map((share) => `${share} %`).join(" / "));
    }
    return { node, update };
}
