// The state of a service, a model or a canary: a word, with a colour that never stands alone.

import { el, put, say } from "./dom.js";

const TONES = {
    Ready: "good",
    Loaded: "good",
    Promoted: "good",
    Successful: "good",
    Standby: "calm",
    Parked: "calm",
    Superseded: "calm",
    Pending: "calm",
    Progressing: "busy",
    Loading: "busy",
    Paused: "busy",
    Inconclusive: "busy",
    Stopping: "busy",
    Degraded: "warn",
    Warning: "warn",
    Error: "warn",
    Failed: "bad",
    FailedToLoad: "bad",
    RolledBack: "bad",
};

export function phase(word = "") {
    const text = el("span", {}, word);
    const node = el("span", { class: "phase" }, el("span", { class: "dot" }), text);
    const update = (now, why = "") => {
        put(node, "class", `phase ${TONES[now] ?? "calm"}`);
        put(node, "title", why || null);
        say(text, now);
    };
    update(word);
    return { node, update };
}
