// Screens for what is not a running service: nothing deployed, no such service, no such page, a failed service.

import { el, fill } from "./dom.js";
import { hrefOf } from "./format.js";
import { logLine } from "./logs.js";
import { pathOf } from "./session.js";
import { services } from "./state.js";
import { documents } from "./streams.js";

const TAIL = 20;
const MAX_DISTANCE = 3;

export function emptyPlatform() {
    return el(
        "section",
        { class: "card stack screen" },
        el("h2", {}, "No services yet"),
        el("p", {}, "Deploy a model from a manifest:"),
        el("div", { class: "change" }, el("a", { class: "first", href: "#/deploy" }, "Deploy a service")),
        el("p", {}, "Or from the command line:"),
        el(
            "pre",
            { tabindex: "0" },
            "platformctl deploy ./model.onnx       # a model\nplatformctl deploy -f service.yaml   # a manifest",
        ),
    );
}

export function notFound(title, sentence, ...children) {
    return el(
        "div",
        { class: "page" },
        el(
            "section",
            { class: "card stack screen" },
            el("h1", {}, title),
            el("p", {}, sentence),
            children,
            el("p", {}, el("a", { href: "#/" }, "All services")),
        ),
    );
}

export function serviceNotFound(id) {
    const near = [...services.keys()].filter((each) => similar(each, id));
    const links = near.map((each) => el("li", {}, el("a", { href: hrefOf(each) }, each)));
    const list = near.length ? [el("p", {}, "Did you mean:"), el("ul", {}, links)] : [];
    return notFound("Service not found", `There is no service ${id}. It may have been deleted.`, ...list);
}

// A few letters apart, of another namespace, or one within the other.
function similar(one, other) {
    const [mine, theirs] = [one, other].map((each) => each.split("/").at(-1).toLowerCase());
    return (
        mine.includes(theirs) ||
        theirs.includes(mine) ||
        distance(mine, theirs) <= Math.min(MAX_DISTANCE, mine.length / 2)
    );
}

function distance(one, other) {
    let row = Array.from({ length: other.length + 1 }, (_, index) => index);
    for (let i = 1; i <= one.length; i += 1) {
        const next = [i];
        for (let j = 1; j <= other.length; j += 1) {
            const change = row[j - 1] + (one[i - 1] === other[j - 1] ? 0 : 1);
            next.push(Math.min(change, row[j] + 1, next[j - 1] + 1));
        }
        row = next;
    }
    return row.at(-1);
}

// Why a service failed, the end of its log, and what to do next.
export function failure(id) {
    const reason = el("p", { class: "refusal" });
    const lines = el("ol");
    const tail = el("div", { class: "log", role: "region", tabindex: "0", "aria-label": "End of the log" }, lines);
    const back = el("a", { class: "change", href: hrefOf(id, "releases") }, "Roll back");
    const links = el(
        "p",
        { class: "line thin" },
        el("a", { class: "change", href: hrefOf(id, "edit") }, "Edit the manifest"),
        el("a", { href: hrefOf(id, "logs") }, "All logs"),
        el("a", { href: hrefOf(id, "events") }, "Events"),
        back,
    );
    const node = el(
        "section",
        { class: "card stack failure", hidden: true },
        el("h2", {}, "The service failed"),
        reason,
        tail,
        links,
    );
    let shown = "";

    async function read() {
        const found = [];
        try {
            for await (const each of documents(`${pathOf(id)}/logs?previous=true&tail=${TAIL}`)) found.push(each);
        } catch {
            // The reason stands without a log: a model that cannot be read starts no replica.
        }
        fill(lines, found.slice(-TAIL).map(logLine));
        tail.hidden = found.length === 0;
        tail.scrollTop = tail.scrollHeight;
    }

    return {
        node,
        update(service) {
            const failed = service.phase === "Failed";
            node.hidden = !failed;
            back.hidden = service.generation < 2; // there is no earlier release
            const text = service.message || service.revisions[0]?.failure || "No reason was reported.";
            if (!failed || text === shown) return;
            shown = reason.textContent = text;
            read();
        },
    };
}
