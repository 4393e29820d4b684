// The rendered objects of a service, live, with their status: what a cluster would get.

import { button, el, fill } from "./dom.js";
import { notice } from "./notices.js";
import { ask, pathOf } from "./session.js";
import { yaml } from "./yaml.js";

const WORKLOADS = /^serving\.knative\.dev\S* Service$|Deployment$|StatefulSet$|LeaderWorkerSet$/;

export function manifestsTab(id) {
    const node = el("div", { class: "stack" }, el("p", { class: "faint" }, "Loading…"));
    let generation = null;

    async function load() {
        try {
            const found = await ask("GET", `${pathOf(id)}/live`);
            fill(
                node,
                el(
                    "div",
                    { class: "line thin" },
                    el("span", { class: "faint" }, `${found.length} live objects`),
                    button("Refresh", load, { class: "small" }),
                ),
                found.map(manifest),
            );
        } catch (error) {
            fill(node, el("p", { class: "refusal" }, error.message));
        }
    }

    return {
        node,
        update(service) {
            if (service.generation === generation) return;
            generation = service.generation;
            load();
        },
        leave() {},
    };
}

function manifest(document_) {
    const text = yaml(document_).trimStart();
    const copy = button("Copy", () => navigator.clipboard.writeText(text).then(() => notice("Copied the manifest.")), {
        class: "small",
    });
    return el(
        "details",
        { class: "card manifest", open: WORKLOADS.test(`${document_.apiVersion} ${document_.kind}`) },
        el(
            "summary",
            {},
            el("strong", {}, document_.kind),
            " ",
            el("code", {}, document_.metadata?.name ?? ""),
            el("span", { class: "faint" }, `  ${document_.apiVersion}`),
        ),
        copy,
        el("pre", { tabindex: "0" }, text),
    );
}
