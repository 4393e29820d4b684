// Notices: one sentence about an action, its success or its error; they disappear.

import { el } from "./dom.js";

const SHOWN_MS = { good: 6000, bad: 30000 }; // an error takes longer to read

export function notice(sentence, tone = "good") {
    const node = el("p", { class: `notice ${tone}` }, sentence);
    document.getElementById("notices").append(node);
    setTimeout(() => node.remove(), SHOWN_MS[tone]);
}

// Runs the action of a button, which is disabled meanwhile; an error becomes a notice.
export async function doing(button, action, sentence) {
    button.disabled = true;
    try {
        await action();
        if (sentence) notice(sentence);
        return true;
    } catch (error) {
        notice(error.message, "bad");
        return false;
    } finally {
        button.disabled = false;
    }
}
