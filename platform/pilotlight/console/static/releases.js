// What was deployed, newest first; any of them can be deployed again.

import { confirmed } from "./dialogs.js";
import { button, el, fill, row, table } from "./dom.js";
import { dateAndClock } from "./format.js";
import { doing } from "./notices.js";
import { ask, pathOf } from "./session.js";

const HEADINGS = ["Generation", "When", "Why", "Document", "Go back"];

export function releasesTab(id) {
    const listing = table("Releases", HEADINGS);
    const told = el("p", { class: "empty" }, "Looking…");
    let generation = null;

    async function load() {
        try {
            const found = await ask("GET", `${pathOf(id)}/releases`);
            fill(
                listing.body,
                found.map((release, index) => releaseRow(id, release, index === 0)),
            );
            told.hidden = found.length > 0;
        } catch (error) {
            told.textContent = error.message;
        }
    }

    return {
        node: el("section", { class: "card flush" }, listing.node, told),
        update(service) {
            if (service.generation === generation) return;
            generation = service.generation;
            load();
        },
        leave() {},
    };
}

function releaseRow(id, release, newest) {
    const text = el(
        "details",
        {},
        el("summary", {}, `${release.document.split("\n").length} lines`),
        el("pre", { tabindex: "0" }, release.document),
    );
    const back = button("Roll back to it", () => roll(id, release, back), { class: "small" });
    const failed = release.failed.length
        ? el("p", { class: "reasontext" }, `did not start: ${release.failed.join(", ")}`)
        : null;
    const cells = [
        el("span", { class: "figure" }, release.generation),
        el("time", { datetime: release.at, class: "figure faint" }, dateAndClock(release.at)),
        el("div", {}, release.note || "deploy", failed),
        text,
        newest ? el("span", { class: "faint" }, "runs") : back,
    ];
    return row(HEADINGS, cells);
}

async function roll(id, release, pressed) {
    const consequence = `The release of ${dateAndClock(release.at)} is deployed again and gets all requests.`;
    if (!(await confirmed(`Roll back to generation ${release.generation}?`, consequence, "Roll back"))) return;
    await doing(
        pressed,
        () => ask("POST", `${pathOf(id)}/rollback`, { generation: release.generation }),
        "It is being deployed again.",
    );
}
