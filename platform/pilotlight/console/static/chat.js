// A chat with a text model, streamed by /v1/chat/completions. Errors are shown at the message.

import { button, el, fill, put, say } from "./dom.js";
import { milliseconds } from "./format.js";

// `stream(body, signal)` yields pieces of text and at last the result; `onchange(body)` gets what would be sent.
export function chatPanel(stream, onchange) {
    const log = el("ol", { class: "chat", "aria-label": "Conversation", "aria-live": "polite" });
    const message = el("textarea", {
        id: "message",
        "aria-describedby": "chat-error",
        oninput: change,
        onkeydown: quick,
    });
    const tokens = el("input", {
        id: "tokens",
        type: "number",
        min: 1,
        max: 100000,
        placeholder: "no limit",
        class: "narrow",
        oninput: change,
    });
    const error = el("p", { id: "chat-error", class: "fielderror", role: "alert" });
    const figures = el("span", { class: "faint figure" });
    const send = el("button", { class: "first", title: "Ctrl+Enter" }, "Send");
    const stop = button("Stop", () => running.abort(), { disabled: true });
    const clear = button("Clear", () => {
        messages = [];
        fill(log);
        change();
    });
    const node = el(
        "form",
        { class: "card stack", onsubmit: submit },
        log,
        el("div", { class: "field" }, el("label", { for: "message" }, "Message"), message, error),
        el(
            "div",
            { class: "line thin" },
            send,
            stop,
            clear,
            el("label", { for: "tokens" }, "Max tokens ", tokens),
            figures,
        ),
    );
    let messages = [];
    let running = new AbortController();

    function body() {
        const turn = { role: "user", content: message.value.trim() || "Hello" };
        const limit = tokens.value ? { max_tokens: Number(tokens.value) } : {}; // without it the model's own
        return { messages: [...messages, turn], ...limit, stream: true };
    }

    function change() {
        fail("");
        onchange(body());
    }

    function fail(sentence) {
        say(error, sentence);
        put(message, "aria-invalid", sentence ? "true" : null);
    }

    function busy(now) {
        send.disabled = now;
        stop.disabled = !now;
    }

    function quick(event) {
        if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) node.requestSubmit();
    }

    function add(role, text) {
        const content = el("div", { class: "said" }, text);
        const turn = el("li", { class: role }, el("strong", {}, role === "user" ? "You" : "Model"), content);
        log.append(turn);
        return { turn, content };
    }

    async function submit(event) {
        event.preventDefault();
        if (!message.value.trim()) return fail("Type a message.");
        const sent = body();
        const [question, reply] = [add("user", message.value.trim()), add("assistant", "")];
        let text = "";
        running = new AbortController();
        busy(true);
        fail("");
        try {
            for await (const piece of stream(sent, running.signal)) {
                if (typeof piece === "string") say(reply.content, (text += piece));
                else say(figures, `${piece.status} in ${milliseconds(piece.ms)}`);
                reply.turn.scrollIntoView({ block: "nearest" });
            }
        } catch (problem) {
            if (!running.signal.aborted) fail(problem.message);
        }
        busy(false);
        if (text) {
            messages = [...sent.messages, { role: "assistant", content: text }];
            message.value = "";
        } else [question, reply].forEach((each) => each.turn.remove());
        onchange(body());
    }

    onchange(body());
    return { node, leave: () => running.abort() };
}
