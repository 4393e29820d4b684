// Charts over time, drawn by uPlot: axes with units, a legend that follows the cursor, gaps where there is no value. Each
// has its values as text and as a table too.

import { el, fill, put, row, say, table } from "./dom.js";
import { NOTHING, bytes, milliseconds, percent, rate } from "./format.js";

const HEIGHT = 150;
const Y_AXIS = 58;
const CHARACTER = 7; // of a label
const MOST_ROWS = 60;
const COLOURS = ["--part0", "--part2", "--part3", "--part1", "--part4", "--part5"];
// After the last colour they start again, with the next dash; beside each the border of its key in the legend.
const DASHES = [
    [[], "solid"],
    [[8, 4], "dashed"],
    [[2, 3], "dotted"],
    [[12, 3, 2, 3], "double"],
];
const scheme = matchMedia("(prefers-color-scheme: dark)");

export const plain = (value) => String(Number(value.toPrecision(3)));
export const UNITS = {
    "req/s": rate,
    ms: milliseconds,
    s: (value) => milliseconds(1000 * value),
    "%": percent,
    share: (value) => percent(100 * value),
    B: bytes,
    W: (value) => `${plain(value)} W`,
    "": plain,
};
const WHOLE = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000, 10000, 100000];

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
export const known = (value) => value !== null && value !== undefined;

function clock(seconds, span) {
    const options = { hour: "2-digit", minute: "2-digit", hour12: false };
    if (span <= 600) options.second = "2-digit";
    return new Date(1000 * seconds).toLocaleTimeString([], options);
}

// Between two gaps there is no line to draw, so a value alone is drawn as a point.
function isolated(plot, index) {
    const values = plot.data[index];
    const alone = (at) => known(values[at]) && !known(values[at - 1]) && !known(values[at + 1]);
    return [...values.keys()].filter(alone);
}

// `line.look` is the number of its colour and dash; by default its place. Without a cursor the last value is shown.
export function seriesOf(line, index, format) {
    const look = line.look ?? index;
    const stroke = colour(line.colour ?? COLOURS[look % COLOURS.length]);
    const [dash, border] = line.dashed ? [[4, 4], "dashed"] : DASHES[Math.floor(look / COLOURS.length) % DASHES.length];
    const shown = (plot, value, place, at) => {
        const chosen = known(at) ? value : plot.data?.[place]?.findLast(known);
        return known(chosen) ? format(chosen) : NOTHING;
    };
    const made = {
        label: line.label,
        stroke,
        dash,
        border,
        width: 1.5,
        points: { show: false, filter: isolated, size: 4, fill: stroke },
        value: shown,
    };
    if (line.steps) made.paths = uPlot.paths.stepped({ align: 1 });
    if (line.texts) {
        made.paths = () => null;
        made.points = { show: true, size: 8, fill: stroke };
        made.value = (plot, value, at, position) => (known(position) && line.texts[position]) || NOTHING;
    }
    return made;
}

// Wide enough for its longest label.
function widthOf(plot, labels) {
    const longest = Math.max(0, ...(labels ?? []).map((each) => each.length));
    return Math.max(Y_AXIS, CHARACTER * longest + 16);
}

function axes(format, whole) {
    const shared = {
        stroke: colour("--faint"),
        font: "11px system-ui, sans-serif",
        grid: { stroke: colour("--edge"), width: 1 },
        ticks: { stroke: colour("--edge"), width: 1, size: 4 },
    };
    const times = (plot, splits) => {
        const span = plot.scales.x.max - plot.scales.x.min;
        return splits.map((each) => clock(each, splits[1] - splits[0] < 60 ? 0 : span));
    };
    const values = (plot, splits) => splits.map((each) => (format === rate ? plain(each) : format(each)));
    return [
        { ...shared, size: 30, space: 64, values: times },
        { ...shared, size: widthOf, space: 30, values, ...(whole ? { incrs: WHOLE } : {}) },
    ];
}

// `update(at, lines, end)`: lines are {label, values, colour, look, steps, dashed, texts}. `group` shares the cursor;
// `min` and `max` are of the axis, by default of the values.
export function chart(title, { unit = "", whole = false, group = null, note = "", min = null, max = null } = {}) {
    const format = UNITS[unit] ?? plain;
    const place = el("div", { class: "plot", role: "img", "aria-label": title });
    const summary = el("p", { class: "hidden summary" }); // the legend shows the last values
    const values = el("div", { class: "values", role: "region", "aria-label": `Values of ${title}`, tabindex: "0" });
    const details = el("details", { ontoggle: () => fillTable() }, el("summary", {}, "Values"), values);
    const heading = el("span", {}, title);
    const caption = el(
        "figcaption",
        {},
        heading,
        unit === "req/s" ? el("span", { class: "faint" }, ` ${unit}`) : null, // other units are in the values
    );
    if (note) caption.title = note;
    const node = el("figure", { class: "card chart", "data-chart": title }, caption, place, summary, details);
    let plot = null;
    let shown = { at: [], lines: [], end: 0 };

    function options() {
        return {
            width: Math.max(place.clientWidth, 200),
            height: HEIGHT,
            series: [
                {
                    value: (each, at) =>
                        known(at) ? new Date(1000 * at).toLocaleString([], { hour12: false }) : "latest",
                    label: "Time",
                },
                ...shown.lines.map((line, index) => seriesOf(line, index, format)),
            ],
            axes: axes(format, whole),
            scales: {
                x: { range: () => [shown.at[0], Math.max(shown.end, shown.at[0] + 1)] },
                y: { range: (each, ...values) => yRange(min, max, ...values) },
            },
            legend: { markers: { width: 2, dash: (each, place) => each.series[place].border } },
            cursor: { y: false, drag: { x: false, y: false }, ...(group ? { sync: { key: group } } : {}) },
            hooks: { drawClear: [(each) => shade(each, shown)] },
        };
    }

    function draw(afresh) {
        if (!node.isConnected || !shown.at.length) return;
        const data = [shown.at, ...shown.lines.map((line) => line.values)];
        if (plot && !afresh) {
            plot.setData(data);
            return;
        }
        plot?.destroy();
        plot = new uPlot(options(), data, place);
        place.plot = plot;
    }

    function fillTable() {
        if (!details.open) return;
        const headings = ["Time", ...shown.lines.map((line) => line.label)];
        const listing = table(title, headings);
        const every = Math.ceil(shown.at.length / MOST_ROWS);
        for (let at = shown.at.length - 1; at >= 0; at -= 1) {
            if (at % every && !shown.lines.some((line) => line.texts?.[at])) continue;
            const cells = shown.lines.map((line) => {
                const value = line.values[at];
                return line.texts ? (line.texts[at] ?? "") : known(value) ? format(value) : "no data";
            });
            listing.body.append(row(headings, [clock(shown.at[at], 0), ...cells]));
        }
        fill(values, listing.node);
    }

    const observer = new ResizeObserver(() => {
        if (plot) plot.setSize({ width: Math.max(place.clientWidth, 200), height: HEIGHT });
        else draw(true);
    });
    const repaint = () => draw(true);
    observer.observe(place);
    scheme.addEventListener("change", repaint);
    return {
        node,
        rename: (text) => say(heading, text),
        update(at, lines, end) {
            const same = lines.map((line) => line.label).join() === shown.lines.map((line) => line.label).join();
            const texts = lines.some((line) => line.texts);
            shown = { at, lines, end };
            say(summary, summarised(lines, format));
            put(place, "aria-label", `${heading.textContent}: ${summary.textContent}`);
            draw(!same || texts);
            fillTable();
        },
        leave() {
            observer.disconnect();
            scheme.removeEventListener("change", repaint);
            plot?.destroy();
        },
    };
}

// A fixed axis gets a margin, so that a line along its end is seen whole.
function yRange(min, max, least, most) {
    if (known(min) && known(max)) return [min - 0.05 * (max - min), max + 0.05 * (max - min)];
    return [min ?? Math.min(0, least ?? 0), max ?? (most > 0 ? 1.1 * most : 1)];
}

// Times without any value, such as those in which the platform did not run.
function shade(plot, { at, lines, end }) {
    const gap = at.map(
        (time, index) => !lines.some((line) => !line.texts && line.gaps !== false && known(line.values[index])),
    );
    if (lines.some((line) => line.sparse) || !gap.includes(false)) return;
    plot.ctx.save();
    plot.ctx.fillStyle = colour("--raised");
    gap.forEach((empty, index) => {
        if (!empty) return;
        const [from, to] = [at[index], at[index + 1] ?? end].map((time) => plot.valToPos(time, "x", true));
        plot.ctx.fillRect(from, plot.bbox.top, Math.ceil(to - from), plot.bbox.height);
    });
    plot.ctx.restore();
}

function summarised(lines, format) {
    const parts = lines
        .filter((line) => !line.texts && !line.dashed)
        .map((line) => {
            const values = line.values.filter(known);
            if (!values.length) return `${line.label}: no data`;
            return `${line.label}: last ${format(values.at(-1))}, max ${format(Math.max(...values))}`;
        });
    const marked = lines.flatMap((line) => line.texts ?? []).filter(Boolean).length;
    const events = marked ? [marked === 1 ? "1 scale event" : `${marked} scale events`] : [];
    return [...parts, ...events].join(" · ");
}
