// The Grafana dashboards for people without Grafana: the same panels and queries, answered by the Prometheus beside the
// platform, or by the recorded history for the metrics that it has.

import { chart } from "./chart.js";
import { el, fill, put, say } from "./dom.js";
import { rangePicker, repeated } from "./history.js";
import { ask } from "./session.js";
import { listen, services } from "./state.js";

const UNITS = { reqps: "req/s", s: "s", percent: "%", percentunit: "share", bytes: "B", watt: "W" };
const START = "platformctl up --prometheus";
const MOST_LINES = 12;
const EVERY_MS = 30000; // every panel is a query or several

export function dashboardsPage(first) {
    const tabs = el("nav", { class: "tabs", "aria-label": "Dashboards" });
    const about = el("p", { class: "faint" }, "Loading…");
    const source = el("p", { class: "faint" });
    const chooser = el(
        "select",
        { "aria-label": "Service", onchange: () => loop.run() },
        el("option", { value: "" }, "All services"),
    );
    const place = el("div", { class: "stack" });
    let all = [];
    let current = first;
    let panels = [];
    const loop = repeated(load, EVERY_MS);
    const head = el("div", { class: "line" }, el("h1", {}, "Dashboards"), chooser, rangePicker(loop.run));
    const node = el("div", { class: "page" }, head, tabs, about, place, source);

    async function load(range) {
        if (!all.length) {
            all = await ask("GET", "/v1/dashboards").catch((error) => {
                say(
                    about,
                    error.status === 404 ? "No dashboards here: a cluster has them in its Grafana." : error.message,
                );
                throw error;
            });
            fill(
                tabs,
                all.map((each) =>
                    el("a", { href: `#/dashboards/${each.name}` }, each.title.replace("Pilotlight / ", "")),
                ),
            );
            turn(current);
        }
        const [namespace, name] = chooser.value ? chooser.value.split("/") : [".*", ".*"];
        for (const panel of panels) {
            if (!node.isConnected) return;
            await panel.load(range, { namespace, name }).then((told) => told && say(source, `Source: ${told}`));
        }
    }

    function turn(name) {
        current = all.some((each) => each.name === name) ? name : (all[0]?.name ?? name);
        const dashboard = all.find((each) => each.name === current);
        if (!dashboard) return;
        [...tabs.children].forEach((each, index) =>
            put(each, "aria-current", all[index].name === current ? "page" : null),
        );
        say(about, dashboard.description);
        panels.forEach((each) => each.leave());
        panels = [];
        const sections = [];
        for (const panel of dashboard.panels) {
            if (!panel.queries.length || !sections.length) sections.push(el("div", { class: "charts" }));
            if (!panel.queries.length) sections.splice(-1, 0, el("h2", {}, panel.title));
            else panels.push(panelOf(panel, sections.at(-1)));
        }
        fill(place, sections);
    }

    const stopListening = listen((what) => what === "services" && offer());
    function offer() {
        const names = [...services.keys()].sort();
        if (
            names.join() ===
            [...chooser.options]
                .slice(1)
                .map((each) => each.value)
                .join()
        )
            return;
        const kept = chooser.value;
        fill(chooser, [chooser.options[0], ...names.map((each) => el("option", { value: each }, each))]);
        chooser.value = names.includes(kept) ? kept : "";
    }

    offer();
    loop.run();
    return {
        node,
        turn(name) {
            turn(name);
            loop.run();
        },
        leave() {
            stopListening();
            loop.leave();
            panels.forEach((each) => each.leave());
        },
    };
}

function panelOf(panel, parent) {
    const drawn = chart(panel.title, { unit: UNITS[panel.unit] ?? "", group: "dashboards", note: panel.description });
    const missing = el("p", { class: "faint missing", hidden: true });
    drawn.node.append(missing);
    parent.append(drawn.node);

    async function load(range, { namespace, name }) {
        const lines = [];
        let told = null;
        for (const { query, legend } of panel.queries) {
            const text = query.replaceAll("$namespace", namespace).replaceAll("$service", name);
            told = await ask("POST", "/v1/query_range", { query: text, seconds: range.seconds });
            lines.push(...told.series.map((each) => lineOf(each, legend)));
        }
        put(drawn.node, "data-empty", lines.length ? null : "true");
        missing.hidden = lines.length > 0;
        const missed = told.reason
            ? ["Recorded by Prometheus only: ", el("code", {}, START)]
            : ["No data in this time."];
        missing.replaceChildren(...missed);
        missing.title = told.reason;
        if (lines.length) drawn.update(told.at, lines.slice(0, MOST_LINES), told.at.at(-1));
        return lines.length ? told.source : "";
    }
    return { load, leave: drawn.leave };
}

function lineOf(series, legend) {
    const label = legend.replace(/\{\{\s*(\w+)\s*\}\}/g, (all, name) => series.labels[name] ?? "").trim();
    return { label: label || "all", values: series.values, dashed: / target$/.test(label), gaps: false };
}
