// The recorded history of a service as charts: of all its revisions on its first tab, of each one during a canary.

import { chart } from "./chart.js";
import { button, el, put, say } from "./dom.js";
import { short } from "./format.js";
import { ask, pathOf } from "./session.js";
import { services } from "./state.js";

export const RANGES = [
    { label: "15 min", seconds: 900, every_ms: 5000 },
    { label: "3 h", seconds: 10800, every_ms: 30000 },
    { label: "24 h", seconds: 86400, every_ms: 60000 },
];
const ELSEWHERE = "This target records no history. On a cluster use Grafana: platformctl dashboard --grafana FOLDER.";
let chosen = RANGES[0]; // for all pages of this tab

// Title, options, and the lines as [label, column, look].
const CHARTS = [
    ["Requests", { unit: "req/s" }, [["requests", "requests_per_second"]]],
    [
        "Latency",
        { unit: "ms" },
        [
            ["p50", "p50_ms", { sparse: true }],
            ["p99", "p99_ms", { sparse: true }],
        ],
    ],
    ["Errors", { unit: "%" }, [["errors", "error_percent", { sparse: true, colour: "--bad" }]]],
    [
        "Replicas",
        { whole: true },
        [
            ["ready", "ready", { steps: true }],
            ["starting", "starting", { steps: true }],
        ],
    ],
    ["Queue", { whole: true }, [["waiting requests", "waiting", { steps: true }]]],
    ["Cold starts", { whole: true }, [["cold starts", "cold_starts", { steps: true }]]],
    ["GPU memory", { unit: "B" }, [["used", "gpu_bytes", { steps: true }]]],
];
const BY_REVISION = CHARTS.slice(0, 3).map(([title, options, lines]) => [title, options, lines.at(-1)]);

// Buttons for the range; `changed` is called with the chosen one.
export function rangePicker(changed) {
    const buttons = RANGES.map((each) => button(each.label, () => choose(each), { class: "small" }));
    function choose(range) {
        chosen = range;
        buttons.forEach((each, index) => put(each, "aria-pressed", String(RANGES[index] === chosen)));
        changed(chosen);
    }
    buttons.forEach((each, index) => put(each, "aria-pressed", String(RANGES[index] === chosen)));
    return el("div", { class: "line thin ranges", role: "group", "aria-label": "Time range" }, buttons);
}

// Calls `load(range)` now, and again at the pace of the range, or slower, while the page is visible.
export function repeated(load, least_ms = 0) {
    let timer = 0;
    let over = false;
    async function run() {
        clearTimeout(timer);
        const range = chosen;
        if (document.visibilityState === "visible") {
            await load(range).catch((error) => {
                if (error.status === 404) over = true; // it is not recorded here
            });
        }
        clearTimeout(timer);
        if (!over) timer = setTimeout(run, chosen === range ? Math.max(least_ms, range.every_ms) : 0);
    }
    return {
        run,
        leave() {
            over = true;
            clearTimeout(timer);
        },
    };
}

function section(id, title, drawn, draw) {
    const note = el("p", { class: "faint" }, "Loading…");
    const shaded = el("span", { class: "faint" }, "Shaded: no data, such as while the platform did not run.");
    const heading = el("div", { class: "line" }, el("h2", {}, title), shaded);
    const node = el(
        "section",
        { class: "stack history" },
        heading,
        note,
        el(
            "div",
            { class: "charts" },
            drawn.map((each) => each.node),
        ),
    );
    const loop = repeated(async (range) => {
        try {
            draw(await ask("GET", `${pathOf(id)}/history?seconds=${range.seconds}`));
            say(note, "");
        } catch (error) {
            say(note, error.status === 404 ? ELSEWHERE : error.message);
            throw error;
        } finally {
            note.hidden = !note.textContent;
        }
    });
    heading.append(rangePicker(loop.run));
    loop.run();
    return {
        node,
        leave() {
            loop.leave();
            drawn.forEach((each) => each.leave());
        },
    };
}

export function serviceHistory(id) {
    const drawn = CHARTS.map(([title, options]) => chart(title, { ...options, group: id }));
    drawn.forEach((each, index) => put(each.node, "hidden", CHARTS[index][0] === "GPU memory"));
    return section(id, "History", drawn, (told) => {
        CHARTS.forEach(([title, , lines], index) => {
            const present = lines.filter(([, column]) => told.service[column].length);
            drawn[index].node.hidden = !present.length;
            const made = present.map(([label, column, look]) => ({ label, values: told.service[column], ...look }));
            if (title === "Replicas") made.push(scaleEvents(told));
            drawn[index].update(told.at, made, told.end);
        });
    });
}

// Each stands on the line of ready replicas, at the interval in which it was decided.
function scaleEvents(told) {
    const texts = told.at.map(() => null);
    for (const mark of told.marks) {
        const index = Math.floor((mark.at - told.at[0]) / told.step);
        if (index >= 0 && index < texts.length) texts[index] = [texts[index], mark.message].filter(Boolean).join("; ");
    }
    const values = texts.map((text, index) => (text ? (told.service.ready[index] ?? 0) : null));
    return { label: "scale events", values, texts, colour: "--ember" };
}

// `sides()` gives the revisions to compare: [name, word, colour].
export function revisionHistory(id, sides) {
    const drawn = BY_REVISION.map(([title, options, [label]]) =>
        chart(title === "Latency" ? `Latency, ${label}, by revision` : `${title} by revision`, {
            ...options,
            group: `${id} canary`,
        }),
    );
    return section(id, "By revision", drawn, (told) => {
        const service = services.get(id);
        BY_REVISION.forEach(([, , [, column, look]], index) => {
            const lines = sides().map(([name, word, colour]) => {
                const found = told.revisions.find((each) => each.revision === name);
                const values = found ? found.columns[column] : told.at.map(() => null);
                return { label: `${word} ${service ? short(service, name) : name}`, values, ...look, colour };
            });
            drawn[index].update(told.at, lines, told.end);
        });
    });
}
