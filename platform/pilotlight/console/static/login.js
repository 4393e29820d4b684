// The login form. `enter` is called with the API's token; its error is shown below the field.

import { el, say } from "./dom.js";

export function login(enter, told) {
    const field = el("input", {
        id: "token",
        type: "password",
        autocomplete: "current-password",
        required: true,
        spellcheck: "false",
        "aria-describedby": "refusal where",
    });
    const refusal = el("p", { id: "refusal", class: "refusal", role: "alert" }, told);
    const send = el("button", { class: "first" }, "Log in");
    const form = el(
        "form",
        { class: "card login", onsubmit: submit },
        el("h1", {}, el("img", { src: "/console/static/flame.svg", alt: "", width: 32, height: 32 }), "Pilotlight"),
        el("input", { type: "text", name: "username", value: "platform", autocomplete: "username", hidden: true }),
        el("label", { for: "token" }, "API token"),
        field,
        refusal,
        send,
        el(
            "p",
            { id: "where", class: "faint" },
            "Run ",
            el("code", {}, "platformctl console"),
            " to log in without a token, or paste the content of the file ",
            el("code", {}, "token"),
            " in the platform’s home folder.",
        ),
    );

    async function submit(event) {
        event.preventDefault();
        send.disabled = true;
        say(refusal, "");
        try {
            await enter(field.value.trim());
        } catch (error) {
            say(refusal, error.message);
            send.disabled = false;
            field.select();
        }
    }
    return el("main", { id: "main", class: "centre" }, form);
}
