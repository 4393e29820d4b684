// One service: who it is, then tabs. A tab lives while it is shown.

import { canaryTab } from "./canary.js";
import { button, el, fill, put, say } from "./dom.js";
import { eventsTab } from "./events.js";
import { logsTab } from "./logs.js";
import { manifestsTab } from "./manifests.js";
import { notice } from "./notices.js";
import { phase } from "./phases.js";
import { releasesTab } from "./releases.js";
import { revisionsTab } from "./revisions.js";
import { link, listen, services } from "./state.js";
import { tryTab } from "./trying.js";

const TABS = [
    ["overview", "Overview", revisionsTab],
    ["canary", "Canary", canaryTab],
    ["try", "Try it", tryTab],
    ["logs", "Logs", logsTab],
    ["events", "Events", eventsTab],
    ["releases", "Releases", releasesTab],
    ["manifests", "Manifests", manifestsTab],
];

export function servicePage(id, first) {
    const [namespace, name] = id.split("/");
    const state = phase();
    const message = el("p", { class: "message" });
    const address = el("code", { class: "address" });
    const facts = el("span", { class: "faint" });
    const panel = el("div", { id: "panel", role: "tabpanel", tabindex: "0", "aria-labelledby": "tab-overview" });
    const tabs = TABS.map(([key, title]) => tabOf(key, title));
    const copy = button("Copy", () => copied(address.textContent), { class: "quiet small" });
    const node = el(
        "div",
        { class: "page" },
        el(
            "nav",
            { class: "crumbs", "aria-label": "Where you are" },
            el("a", { href: "#/" }, "Services"),
            ` / ${namespace}`,
        ),
        el("div", { class: "line" }, el("h1", {}, name), state.node, facts),
        el("div", { class: "line thin" }, address, copy),
        message,
        el("div", { class: "tabs", role: "tablist", "aria-label": "About this service", onkeydown: walk }, tabs),
        panel,
    );
    let shown = null;
    let current = "";

    function tabOf(key, title) {
        const where = `#/services/${encodeURIComponent(namespace)}/${encodeURIComponent(name)}/${key}`;
        return el("a", { id: `tab-${key}`, role: "tab", href: where, "aria-controls": "panel" }, title);
    }

    // Left, right, Home and End walk along the tabs, as in any list of tabs.
    function walk(event) {
        const at = tabs.indexOf(document.activeElement);
        const goal = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: tabs.length - 1 }[event.key];
        if (at < 0 || goal === undefined) return;
        event.preventDefault();
        const next = tabs[(goal + tabs.length) % tabs.length];
        next.focus();
        turn(next.id.slice("tab-".length)); // at once: the next key may follow before the address has changed
        location.hash = next.hash;
    }

    function turn(key) {
        const found = TABS.find((each) => each[0] === key) ?? TABS[0];
        if (current === found[0]) return;
        [current] = found;
        tabs.forEach((tab) => {
            const chosen = tab.id === `tab-${current}`;
            put(tab, "aria-selected", String(chosen));
            put(tab, "tabindex", chosen ? "0" : "-1");
        });
        put(panel, "aria-labelledby", `tab-${current}`);
        shown?.leave();
        shown = found[2](id);
        fill(panel, shown.node);
        draw();
    }

    function draw() {
        const service = services.get(id);
        if (!service) {
            state.update(link.heard ? "Gone" : "");
            say(message, link.heard ? "There is no such service any more." : "");
            return;
        }
        state.update(service.phase);
        say(address, service.url);
        say(facts, [service.mode, `generation ${service.generation}`].filter(Boolean).join(" · "));
        say(message, [service.message, ...service.warnings].filter(Boolean).join(" · "));
        shown?.update(service);
    }

    async function copied(text) {
        await navigator.clipboard.writeText(text);
        notice("The address is in the clipboard.");
    }

    const stopListening = listen(draw);
    turn(first);
    draw();
    return {
        node,
        turn,
        leave() {
            stopListening();
            shown?.leave();
        },
    };
}
