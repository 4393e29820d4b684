// The page of one service: its name and state, then tabs. A tab lives while it is shown.

import { canaryTab } from "./canary.js";
import { confirmed } from "./dialogs.js";
import { button, el, fill, put, say } from "./dom.js";
import { eventsTab } from "./events.js";
import { hrefOf } from "./format.js";
import { logsTab } from "./logs.js";
import { manifestsTab } from "./manifests.js";
import { doing, notice } from "./notices.js";
import { phase } from "./phases.js";
import { releasesTab } from "./releases.js";
import { revisionsTab } from "./revisions.js";
import { ask, pathOf, session } from "./session.js";
import { link, listen, services } from "./state.js";
import { failure, serviceNotFound } from "./states.js";
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
const HIDDEN = ["releases", "manifests"]; // from a read-only session: they may hold Secrets

export function servicePage(id, first) {
    const [namespace, name] = id.split("/");
    const state = phase();
    const message = el("p", { class: "message" });
    const address = el("code", { class: "address" });
    const facts = el("span", { class: "faint" });
    const panel = el("div", { id: "panel", role: "tabpanel", tabindex: "0", "aria-labelledby": "tab-overview" });
    const tabs = TABS.filter(([key]) => !session.readOnly || !HIDDEN.includes(key)).map(([key, title]) =>
        tabOf(key, title),
    );
    const copy = button("Copy", () => copied(address.textContent), { class: "quiet small" });
    const failed = failure(id);
    const actions = el(
        "div",
        { class: "line thin ends change", role: "group", "aria-label": "Actions" },
        el("a", { class: "button", href: hrefOf(id, "edit") }, "Edit"),
        button("Delete", remove, { class: "danger" }),
    );
    const body = el(
        "div",
        { class: "page" },
        el(
            "nav",
            { class: "crumbs", "aria-label": "Breadcrumb" },
            el("a", { href: "#/" }, "Services"),
            ` / ${namespace}`,
        ),
        el("div", { class: "line" }, el("h1", {}, name), state.node, facts, actions),
        el("div", { class: "line thin" }, address, copy),
        message,
        el("div", { class: "tabs", role: "tablist", "aria-label": "Views of the service", onkeydown: walk }, tabs),
        failed.node,
        panel,
    );
    const node = el("div", {});
    let shown = null;
    let current = "";
    let wanted = first;

    function tabOf(key, title) {
        return el("a", { id: `tab-${key}`, role: "tab", href: hrefOf(id, key), "aria-controls": "panel" }, title);
    }

    // Left, Right, Home and End move along the tabs.
    function walk(event) {
        const at = tabs.indexOf(document.activeElement);
        const goal = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: tabs.length - 1 }[event.key];
        if (at < 0 || goal === undefined) return;
        event.preventDefault();
        const next = tabs[(goal + tabs.length) % tabs.length];
        next.focus();
        turn(next.id.slice("tab-".length)); // now: the next key may come before the address has changed
        location.hash = next.hash;
    }

    function turn(key) {
        const found = TABS.find((each) => each[0] === key) ?? TABS[0];
        wanted = key;
        if (current === found[0] || !services.has(id)) return;
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
            if (link.heard && !node.querySelector(".screen")) fill(node, serviceNotFound(id));
            return;
        }
        fill(node, body);
        if (!shown) turn(wanted);
        state.update(service.phase);
        say(address, service.url);
        say(facts, [service.mode, `generation ${service.generation}`].filter(Boolean).join(" · "));
        say(
            message,
            [service.phase === "Failed" ? "" : service.message, ...service.warnings].filter(Boolean).join(" · "),
        );
        failed.update(service);
        shown?.update(service);
    }

    async function remove() {
        const consequence =
            "Its replicas stop and its releases are removed. Requests to it fail. This cannot be undone.";
        if (!(await confirmed(`Delete ${id}?`, consequence, "Delete", name))) return;
        const pressed = actions.lastChild;
        if (await doing(pressed, () => ask("DELETE", pathOf(id)), `Deleted ${id}.`)) location.hash = "#/";
    }

    async function copied(text) {
        await navigator.clipboard.writeText(text);
        notice("Copied the address.");
    }

    const stopListening = listen(draw);
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
