// Parts of a whole beside each other: phases of a start, traffic of revisions.

import { svg } from "./dom.js";

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
