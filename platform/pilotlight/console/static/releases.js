// Releases, newest first; each can be deployed again.

import { confirmed } from "./dialogs.js";
import { button, el, keyed, row, table } from "./dom.js";
import { dateAndClock } from "./format.js";
import { doing } from "./notices.js";
import { ask, pathOf } from "./session.js";

const HEADINGS = ["Generation", "Time", "Change", "Manifest", "Action"];

export function releasesTab(id) {
    const listing = table("Releases", HEADINGS);
    const told = el("p", { class: "empty" }, "Loading…");
    const update = keyed(listing.body, (release) => ({ node: releaseRow(id, release), update() {} }));
    let generation = null;

    async function load() {
        try {
            const found = await ask("GET", `${pathOf(id)}/releases`);
            const [newest] = found;
            update(
                found.map((each) => ({ ...each, runs: each === newest })),
                keyOf,
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

// A row is replaced only if its content differs, so that an open manifest stays open.
function keyOf(release) {
    return JSON.stringify([release.generation, release.at, release.runs, release.failed]);
}

function releaseRow(id, release) {
    const text = el(
        "details",
        {},
        el("summary", {}, `${release.document.split("\n").length} lines`),
        el("pre", { tabindex: "0" }, release.document),
    );
    const back = button("Roll back", () => roll(id, release, back), { class: "small change" });
    const failed = release.failed.length
        ? el("p", { class: "reasontext" }, `failed to start: ${release.failed.join(", ")}`)
        : null;
    const cells = [
        el("span", { class: "figure" }, release.generation),
        el("time", { datetime: release.at, class: "figure faint" }, dateAndClock(release.at)),
        el("div", {}, release.note || "deploy", failed),
        text,
        release.runs ? el("span", { class: "faint" }, "current") : back,
    ];
    return row(HEADINGS, cells);
}

async function roll(id, release, pressed) {
    const consequence = `The release of ${dateAndClock(release.at)} is deployed again and gets all traffic.`;
    if (!(await confirmed(`Roll back to generation ${release.generation}?`, consequence, "Roll back"))) return;
    await doing(
        pressed,
        () => ask("POST", `${pathOf(id)}/rollback`, { generation: release.generation }),
        `Rolling back to generation ${release.generation}.`,
    );
}
