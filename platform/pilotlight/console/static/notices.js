// One sentence about what was just done, or why not; it goes by itself.

import { el } from "./dom.js";

const SHOWN_MS = { good: 6000, bad: 30000 }; // a refusal wants to be read

export function notice(sentence, tone = "good") {
    const node = el("p", { class: `notice ${tone}` }, sentence);
    document.getElementById("notices").append(node);
    setTimeout(() => node.remove(), SHOWN_MS[tone]);
}

// Runs what a button does: the button waits with it, and a refusal is told.
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
