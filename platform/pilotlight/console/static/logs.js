// Log lines of replicas, followed while the tab is open. A service without a replica shows those of the ended ones.

import { el, fill, say } from "./dom.js";
import { NOTHING } from "./format.js";
import { pathOf } from "./session.js";
import { documents } from "./streams.js";

const KEPT = 2000;
const TAIL = 300;
const AGAIN_MS = 2000;

export function logsTab(id) {
    const replica = el("select", { "aria-label": "Replica" }, el("option", { value: "" }, "All replicas"));
    const previous = el("input", { type: "checkbox", id: "previous" });
    const following = el("input", { type: "checkbox", id: "follow", checked: true });
    const filter = el("input", { type: "search", placeholder: "Filter lines", "aria-label": "Filter lines" });
    const lines = el("ol");
    const shown = el("div", { class: "log", role: "log", tabindex: "0", "aria-label": "Log lines" }, lines);
    const told = el("p", { class: "faint" }, "Loading…");
    const known = new Set();
    const revision = decodeURIComponent(location.hash.split("/")[5] ?? ""); // a link to the log of one revision
    if (revision) replica.append(el("option", { value: revision, selected: true }, `Revision ${revision}`));
    let running = new AbortController();
    let begun = false;

    function restart() {
        running.abort();
        running = new AbortController();
        fill(lines);
        say(told, "Loading…");
        read(running.signal);
    }

    async function read(signal) {
        while (!signal.aborted) {
            try {
                await take(signal);
                if (!lines.childElementCount)
                    say(
                        told,
                        previous.checked
                            ? "No ended replica has written a log."
                            : "No replica is running. The logs of earlier ones are under Ended replicas.",
                    );
            } catch (error) {
                if (!signal.aborted) say(told, error.message);
            }
            if (signal.aborted || !following.checked || previous.checked) return;
            await new Promise((resolve) => setTimeout(resolve, AGAIN_MS));
            fill(lines);
        }
    }

    async function take(signal) {
        const asked = new URLSearchParams({ tail: TAIL, replica: replica.value, all_ended: "true" });
        if (following.checked && !previous.checked) asked.set("follow", "true");
        if (previous.checked) asked.set("previous", "true");
        for await (const found of documents(`${pathOf(id)}/logs?${asked}`, signal)) {
            if (signal.aborted) return;
            add(found);
            say(told, "");
        }
    }

    function add(found) {
        if (!known.has(found.replica)) {
            known.add(found.replica);
            replica.append(el("option", { value: found.replica }, found.replica));
        }
        const atEnd = shown.scrollHeight - shown.scrollTop - shown.clientHeight < 40;
        shown.classList.toggle("several", known.size > 1);
        const line = logLine(found);
        line.hidden = !fits(line);
        lines.append(line);
        if (lines.childElementCount > KEPT) lines.firstChild.remove();
        if (atEnd) shown.scrollTop = shown.scrollHeight;
    }

    const fits = (line) => line.textContent.toLowerCase().includes(filter.value.trim().toLowerCase());
    filter.addEventListener("input", () => [...lines.children].forEach((line) => (line.hidden = !fits(line))));
    for (const control of [replica, previous, following]) control.addEventListener("change", restart);
    const bar = el(
        "div",
        { class: "line thin" },
        replica,
        el("label", { for: "follow" }, following, " Follow"),
        el("label", { for: "previous" }, previous, " Ended replicas"),
        filter,
    );
    return {
        node: el("section", { class: "card" }, bar, told, shown),
        update(service) {
            if (begun) return;
            begun = true;
            const shown = service.revisions.filter((each) => !revision || each.name === revision);
            previous.checked = shown.every((each) => !each.ready && (!each.starting || each.failure));
            read(running.signal);
        },
        leave: () => running.abort(),
    };
}

// The predictor writes JSON: time, level and message are shown, other fields are folded. Other lines stay unchanged.
export function logLine({ replica, line }) {
    const read = parsed(line);
    const whose = el("span", { class: "faint whose", title: replica }, replica.split("-").at(-1));
    if (!read) return el("li", {}, whose, el("span", { class: "said" }, line));
    const { when, level, said, rest } = read;
    const tone = /^(warn|error|critical|fatal)/i.test(level) ? "level bad" : "level";
    return el(
        "li",
        {},
        whose,
        el("span", { class: "faint when" }, when),
        el("span", { class: tone }, level),
        el(
            "div",
            { class: "said" },
            said,
            rest && el("details", {}, el("summary", {}, "details"), el("div", { class: "faint" }, rest)),
        ),
    );
}

function parsed(line) {
    if (!line.startsWith("{")) return null;
    try {
        const { time, ts, timestamp, level, message, msg, event, ...others } = JSON.parse(line);
        const text = message ?? msg ?? "";
        const at = String(time ?? ts ?? timestamp ?? "");
        const rest = Object.entries(others).map(
            ([name, value]) => `${name}=${typeof value === "string" ? value : JSON.stringify(value)}`,
        );
        return {
            when: /T(\d\d:\d\d:\d\d(?:\.\d{1,3})?)/.exec(at)?.[1] ?? (at || NOTHING),
            level: String(level ?? ""),
            said: [text.startsWith(event) ? "" : event, text].filter(Boolean).join(": "),
            rest: rest.join("\n"),
        };
    } catch {
        return null;
    }
}
