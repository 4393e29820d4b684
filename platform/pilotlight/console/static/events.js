// Events, newest first. Repetitions of an event are folded into one row with their count.

import { el, keyed, put, row, say, table } from "./dom.js";
import { dateAndClock, hrefOf } from "./format.js";
import { pathOf } from "./session.js";
import { events, listen } from "./state.js";
import { documents } from "./streams.js";

export const EVENT_HEADINGS = ["Time", "Service", "Reason", "Message"];
const HEADINGS = ["Time", "Object", "Reason", "Message"];

// Newest first; an event that repeats the one before it, of whichever replica, adds to its count.
export function folded(all) {
    const rows = [];
    for (const event of all) {
        const last = rows.at(-1);
        const same = last && ["namespace", "service", "reason", "message"].every((name) => last[name] === event[name]);
        if (same) Object.assign(last, event, { first: last.first, count: last.count + 1 });
        else rows.push({ ...event, first: event.number, count: 1 });
    }
    return rows.reverse();
}

function rowOf(headings, subject) {
    return (event) => {
        const when = el("time", { class: "faint figure" });
        const reason = el("span", { class: event.type === "Warning" ? "phase bad" : "reason" }, event.reason);
        const count = el("span", { class: "chip", hidden: true });
        const update = (latest) => {
            put(when, "datetime", latest.at);
            say(when, dateAndClock(latest.at));
            count.hidden = latest.count < 2;
            say(count, `× ${latest.count}`);
        };
        return {
            node: row(headings, [when, subject(event), el("span", { class: "nowrap" }, reason, count), event.message]),
            update,
        };
    };
}

export const eventRow = rowOf(EVENT_HEADINGS, ({ namespace, service }) => {
    const id = `${namespace}/${service}`;
    return el("a", { href: hrefOf(id) }, id);
});
const ownRow = rowOf(HEADINGS, (event) => el("code", { class: "faint" }, event.object));

// Stored events of one service, then those of the feed.
export function eventsTab(id) {
    const listing = table("Events", HEADINGS);
    const empty = el("p", { class: "empty" }, "Loading…");
    const update = keyed(listing.body, ownRow);
    const ending = new AbortController();
    const stored = [];

    function draw() {
        const known = new Set(stored.map((each) => each.number));
        const fresh = events.filter((each) => `${each.namespace}/${each.service}` === id && !known.has(each.number));
        const all = folded([...stored, ...fresh].sort((one, other) => one.number - other.number));
        update(all, (each) => each.first);
        empty.hidden = all.length > 0;
    }

    (async () => {
        try {
            for await (const event of documents(`${pathOf(id)}/events`, ending.signal)) stored.push(event);
            say(empty, "No events yet.");
        } catch (error) {
            if (!ending.signal.aborted) say(empty, error.message);
        }
        draw();
    })();
    const stopListening = listen((what) => what === "events" && draw());
    draw();
    return {
        node: el("section", { class: "card flush" }, listing.node, empty),
        update() {},
        leave() {
            ending.abort();
            stopListening();
        },
    };
}
