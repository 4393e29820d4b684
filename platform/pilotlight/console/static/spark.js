// Lines without axes, for the rows of tables.

import { known, plain, seriesOf } from "./chart.js";
import { el } from "./dom.js";

// `bound` is drawn across.
export function spark(label, width = 120, height = 28) {
    const node = el("div", { class: "spark", role: "img", "aria-label": label });
    let plot = null;
    const hidden = [{ show: false }, { show: false }];
    return {
        node,
        draw(at, values, bound = null) {
            if (!node.isConnected || at.length < 2) return;
            const data = [at, values, ...(known(bound) ? [at.map(() => bound)] : [])];
            if (plot && plot.series.length === data.length) {
                plot.setData(data);
                return;
            }
            plot?.destroy();
            const series = [{}, seriesOf({ label, colour: "--accent" }, 0, plain)];
            if (known(bound)) series.push(seriesOf({ label: "bound", colour: "--bad", dashed: true }, 1, plain));
            const scales = {
                x: { time: false },
                y: { range: (each, least, most) => [0, most > 0 ? 1.1 * most : 1] },
            };
            const settings = {
                width,
                height,
                series,
                axes: hidden,
                scales,
                legend: { show: false },
                cursor: { show: false },
            };
            plot = new uPlot({ ...settings, padding: [2, 0, 2, 0] }, data, node);
            node.plot = plot;
        },
        leave() {
            plot?.destroy();
        },
    };
}
