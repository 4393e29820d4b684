// Small pictures of figures, as SVG made node by node. A figure holds until the next one, so lines are steps.

import { put, svg } from "./dom.js";
import { WINDOW_S, now } from "./state.js";

const LEAST_S = 60; // what has been watched for a minute only is not drawn in the corner of five
const WIDTH = 120;
const HEIGHT = 28;

// `draw(points, field)`: points are [at, …]; a gap stands where a figure is null.
export function sparkline(label, height = HEIGHT, width = WIDTH) {
    const area = svg("path", { class: "area" });
    const line = svg("path", { class: "line" });
    const node = svg(
        "svg",
        {
            class: "spark",
            viewBox: `0 0 ${width} ${height}`,
            preserveAspectRatio: "none",
            role: "img",
            "aria-label": label,
        },
        area,
        line,
    );
    const draw = (points, field, least = 0) => {
        const end = now();
        const begin = Math.max(end - WINDOW_S, Math.min(points[0]?.[0] ?? end, end - LEAST_S));
        const steps = within(points, field, begin, end);
        const top = Math.max(least, ...steps.map((step) => step.value)) * 1.1 || 1;
        const x = (at) => ((width * (at - begin)) / (end - begin)).toFixed(1);
        const y = (value) => (height - 1 - (height - 3) * (value / top)).toFixed(1);
        const drawn = steps.map((step) => `M${x(step.from)} ${y(step.value)}H${x(step.to)}`);
        put(line, "d", joined(steps, x, y));
        put(area, "d", drawn.map((path, index) => `${path}V${height}H${x(steps[index].from)}Z`).join(""));
        return top / 1.1;
    };
    return { node, draw };
}

// Stretches in which a figure held, cut to the window.
function within(points, field, begin, end) {
    return points
        .map((point, index) => ({
            value: point[field],
            from: Math.max(point[0], begin),
            to: Math.min(points[index + 1]?.[0] ?? end, end),
        }))
        .filter((step) => step.value !== null && step.value !== undefined && step.to >= step.from && step.to >= begin);
}

function joined(steps, x, y) {
    let path = "";
    let reached = null;
    for (const step of steps) {
        path += reached === step.from ? `V${y(step.value)}` : `M${x(step.from)} ${y(step.value)}`;
        path += `H${x(step.to)}`;
        reached = step.to;
    }
    return path;
}

// Values one after another, whenever they were measured; `bound` is drawn as a line across.
export function series(label, values, bound = null) {
    const known = values.filter((value) => value !== null && value !== undefined);
    const top = Math.max(bound ?? 0, ...known) * 1.1 || 1;
    const x = (index) => ((WIDTH * index) / Math.max(1, known.length - 1)).toFixed(1);
    const y = (value) => (HEIGHT - 1 - (HEIGHT - 3) * (value / top)).toFixed(1);
    const path = known.map((value, index) => `${index ? "L" : "M"}${x(index)} ${y(value)}`).join("");
    return svg(
        "svg",
        {
            class: "spark",
            viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
            preserveAspectRatio: "none",
            role: "img",
            "aria-label": label,
        },
        bound === null ? null : svg("path", { class: "bound", d: `M0 ${y(bound)}H${WIDTH}` }),
        svg("path", { class: "line", d: path }),
    );
}

// Parts of a whole beside each other: phases of a start, shares of traffic.
export function bar(label, parts) {
    const whole = parts.reduce((sum, part) => sum + part.value, 0) || 1;
    let at = 0;
    const pieces = parts.map((part, index) => {
        const size = (100 * part.value) / whole;
        const gap = at + size < 99.9 ? 0.3 : 0;
        const piece = svg(
            "rect",
            { x: at, y: 0, width: Math.max(size - gap, 0), height: 10, class: `part part${(part.tone ?? index) % 6}` },
            svg("title", {}, `${part.name}: ${part.told}`),
        );
        at += size;
        return piece;
    });
    const told = parts.map((part) => `${part.name} ${part.told}`).join(", ");
    return svg(
        "svg",
        {
            class: "bar",
            viewBox: "0 0 100 10",
            preserveAspectRatio: "none",
            role: "img",
            "aria-label": `${label}: ${told}`,
        },
        pieces,
    );
}
