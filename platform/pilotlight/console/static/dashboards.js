// The Grafana dashboards for people without Grafana: the same panels and queries, answered by the Prometheus beside the
// platform, or by the recorded history for the metrics that it has.

import { chart } from "./chart.js";
import { button, el, fill, put, say } from "./dom.js";
import { rangePicker, repeated } from "./history.js";
import { ask } from "./session.js";
import { listen, services } from "./state.js";

const UNITS = { reqps: "req/s", s: "s", percent: "%", percentunit: "share", bytes: "B", watt: "W" };
const START = "platformctl down && platformctl up --prometheus";
const TOP = 12; // lines of a panel, unless all are wanted
const RANGE = "the displayed range"; // in the titles of panels whose value is of all of it
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
    const { min, max } = panel;
    const options = { unit: UNITS[panel.unit] ?? "", group: "dashboards", note: panel.description, min, max };
    const drawn = chart(panel.title, options);
    const missing = el("p", { class: "faint missing" }, "Loading…");
    put(drawn.node, "data-empty", "loading");
    const more = button("", () => draw({ ...shown, all: !shown.all }), { class: "quiet small", hidden: true });
    drawn.node.querySelector("details").before(more);
    drawn.node.append(missing);
    parent.append(drawn.node);
    let shown = { at: [], lines: [], all: false };
    let looks = new Map();

    async function load(...asked) {
        try {
            return await refresh(...asked);
        } catch (error) {
            missing.hidden = false;
            say(missing, error.message);
            return "";
        }
    }

    async function refresh(range, { namespace, name }) {
        const lines = [];
        let told = null;
        for (const { query, legend } of panel.queries) {
            const text = query.replaceAll("$namespace", namespace).replaceAll("$service", name);
            told = await ask("POST", "/v1/query_range", { query: text, seconds: range.seconds });
            lines.push(...told.series.map((each) => lineOf(each, legend)));
        }
        drawn.rename(panel.title.replace(RANGE, `the last ${range.label}`));
        put(drawn.node, "data-empty", lines.length ? null : "true");
        missing.hidden = lines.length > 0;
        const missed = told.reason
            ? ["Recorded by Prometheus only: ", el("code", {}, START)]
            : ["No data in this time range."];
        missing.replaceChildren(...missed);
        missing.title = told.reason;
        if (lines.length) draw({ ...shown, at: told.at, lines: ranked(lines) });
        return lines.length ? told.source : "";
    }

    // The lines with the highest values, the others after a press.
    function draw(next) {
        shown = next;
        const lines = shown.all ? shown.lines : shown.lines.slice(0, TOP);
        looks = looksOf(lines, looks);
        more.hidden = shown.lines.length <= TOP;
        say(more, shown.all ? `Show top ${TOP}` : `+ ${shown.lines.length - TOP} more`);
        drawn.update(
            shown.at,
            lines.map((line) => ({ ...line, look: looks.get(line.label) })),
            shown.at.at(-1),
        );
    }
    return { load, leave: drawn.leave };
}

// By mean value. Services of one name in several namespaces have them in their labels.
function ranked(lines) {
    const labels = lines.map((line) => line.label);
    const several = (line) => labels.indexOf(line.label) !== labels.lastIndexOf(line.label);
    return lines
        .map((line) => (several(line) && line.namespace ? { ...line, label: `${line.namespace}/${line.label}` } : line))
        .sort((one, other) => mean(other.values) - mean(one.values) || one.label.localeCompare(other.label));
}

function mean(values) {
    const present = values.filter((value) => value !== null);
    return present.reduce((sum, value) => sum + value, 0) / (present.length || 1);
}

// Colours and dashes, one for each line; a line keeps its own while it is shown.
function looksOf(lines, before) {
    const kept = new Map(lines.map(({ label }) => [label, before.get(label)]).filter(([, look]) => look !== undefined));
    const taken = new Set(kept.values());
    const free = [...lines.keys()].filter((look) => !taken.has(look));
    for (const { label } of lines) if (!kept.has(label)) kept.set(label, free.shift());
    return kept;
}

function lineOf({ labels, values }, legend) {
    const label = legend.replace(/\{\{\s*(\w+)\s*\}\}/g, (all, name) => labels[name] ?? "").trim();
    const dashed = / target$/.test(label);
    return { label: label || "all", namespace: labels.namespace, values, dashed, gaps: false };
}
