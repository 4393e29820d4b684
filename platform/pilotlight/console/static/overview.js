// All services, a row each, with their live traffic; below them recent events.

import { el, keyed, row, say, table } from "./dom.js";
import { eventRow, EVENT_HEADINGS, folded } from "./events.js";
import { hrefOf, milliseconds, percent, rate, replicas, total, worst } from "./format.js";
import { repeated } from "./history.js";
import { phase } from "./phases.js";
import { ask } from "./session.js";
import { spark } from "./spark.js";
import { events, link, listen, services } from "./state.js";
import { emptyPlatform } from "./states.js";

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
    const happened = table("Recent events", EVENT_HEADINGS);
    const updateEvents = keyed(happened.body, eventRow);
    const some = el("section", { class: "card flush" }, listing.node, empty);
    const none = emptyPlatform();
    const node = el(
        "div",
        { class: "page" },
        el(
            "div",
            { class: "line" },
            el("h1", {}, "Services"),
            filter,
            el("a", { class: "button change", href: "#/deploy" }, "Deploy"),
        ),
        el(
            "dl",
            { class: "tiles" },
            tiles.map((each) => each.node),
        ),
        none,
        some,
        el("h2", {}, "Recent events"),
        el("section", { class: "card flush" }, happened.node),
    );

    function draw() {
        const all = [...services.values()];
        const asked = filter.value.trim().toLowerCase();
        const shown = all.filter((each) => `${each.id} ${each.phase}`.toLowerCase().includes(asked));
        update(shown, (each) => each.id);
        none.hidden = !link.heard || all.length > 0;
        some.hidden = !none.hidden;
        say(empty, link.heard ? "No service matches the filter." : "Loading…");
        empty.hidden = shown.length > 0;
        const sums = [all.length, sum(all, "ready"), rate(sum(all, "per_second")), sum(all, "cold_starts")];
        tiles.forEach((each, index) => say(each.value, link.heard ? sums[index] : "–"));
        updateEvents(folded(events).slice(0, SHOWN_EVENTS), (each) => each.first);
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

// `/` focuses the filter, Escape clears it.
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

function serviceRow(service, traffic) {
    const state = phase();
    const texts = Array.from({ length: 6 }, () => el("span", { class: "figure" }));
    const [count, requests, p50, p99, errors, cold] = texts;
    const line = spark("requests per second, last 15 min");
    const split = el("span", { class: "chip ember", hidden: true });
    const name = el(
        "div",
        {},
        el("a", { href: hrefOf(service.id), class: "name" }, service.name),
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
        say(why, now.message.replace(/^[a-z0-9.-]+-[0-9a-f]{8}: /, "")); // the revision is on its page
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
