// What happened, newest first.

import { el, keyed, row, say, table } from "./dom.js";
import { clock, dateAndClock } from "./format.js";
import { pathOf } from "./session.js";
import { events, listen } from "./state.js";
import { documents } from "./streams.js";

export const EVENT_HEADINGS = ["When", "Service", "Reason", "Message"];
const HEADINGS = ["When", "Object", "Reason", "Message"];

export function eventRow(event) {
    const when = el(
        "time",
        { datetime: event.at, title: dateAndClock(event.at), class: "faint figure" },
        clock(event.at),
    );
    const whose = `${event.namespace}/${event.service}`;
    return { node: row(EVENT_HEADINGS, [when, whose, reason(event), event.message]), update() {} };
}

function reason(event) {
    return el("span", { class: event.type === "Warning" ? "phase bad" : "reason" }, event.reason);
}

function ownRow(event) {
    const when = el(
        "time",
        { datetime: event.at, title: dateAndClock(event.at), class: "faint figure" },
        clock(event.at),
    );
    const object = el("code", { class: "faint" }, event.object);
    return { node: row(HEADINGS, [when, object, reason(event), event.message]), update() {} };
}

// A service's own: those that are kept, then what the feed adds.
export function eventsTab(id) {
    const listing = table("Events", HEADINGS);
    const empty = el("p", { class: "empty" }, "Looking…");
    const update = keyed(listing.body, ownRow);
    const ending = new AbortController();
    let kept = [];

    function draw() {
        const known = new Set(kept.map((each) => each.number));
        const fresh = events.filter((each) => `${each.namespace}/${each.service}` === id && !known.has(each.number));
        const all = [...kept, ...fresh].sort((one, other) => other.number - one.number);
        update(all, (each) => each.number);
        empty.hidden = all.length > 0;
    }

    (async () => {
        try {
            for await (const event of documents(`${pathOf(id)}/events`, ending.signal)) kept.push(event);
            say(empty, "Nothing has happened yet.");
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
