// One connection to the feed while the page is visible: a browser has six per host, hidden tabs need none.

import { entered } from "./session.js";
import { changed, link, takeCanary, takeEvents, takeServices } from "./state.js";
import { messages } from "./streams.js";

const PAUSES_MS = [250, 500, 1000, 2000, 5000];
const SILENCE_MS = 25000;

let running = null;
let watched = "";

export function start(service = "") {
    const wanted = service;
    if (running && wanted === watched) return;
    stop();
    watched = wanted;
    if (document.visibilityState === "visible") {
        running = new AbortController();
        follow(running.signal, wanted);
    }
}

export function stop() {
    running?.abort();
    running = null;
}

document.addEventListener("visibilitychange", () => {
    if (!entered()) return;
    if (document.visibilityState === "visible") start(watched);
    else stop();
});

async function follow(signal, service) {
    const query = service ? `?service=${encodeURIComponent(service)}` : "";
    for (let failures = 0; !signal.aborted && entered(); failures += 1) {
        try {
            await hear(`/feed${query}`, signal, service, () => {
                failures = 0;
            });
        } catch {
            // The header shows a lost connection; a session that has ended leads to the login.
        }
        if (signal.aborted) return;
        tell(false);
        await new Promise((resolve) => setTimeout(resolve, PAUSES_MS[Math.min(failures, PAUSES_MS.length - 1)]));
    }
}

async function hear(path, signal, service, heard) {
    const silent = new AbortController();
    let timer = setTimeout(() => silent.abort(), SILENCE_MS);
    try {
        for await (const { event, data } of messages(path, AbortSignal.any([signal, silent.signal]))) {
            clearTimeout(timer);
            timer = setTimeout(() => silent.abort(), SILENCE_MS);
            if (signal.aborted) return;
            heard();
            tell(true);
            if (event === "services") takeServices(data);
            else if (event === "events") takeEvents(data);
            else if (event === "canary") takeCanary(service, data);
        }
    } finally {
        clearTimeout(timer);
    }
}

function tell(live) {
    if (link.live === live) return;
    link.live = live;
    changed("link");
}
