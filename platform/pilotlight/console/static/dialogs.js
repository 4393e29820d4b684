// Confirmation of an action that cannot be undone at once. Escape and Cancel mean no.

import { button, el } from "./dom.js";

// `name` must be typed where it is given.
export function confirmed(question, consequence, label, name = "") {
    return new Promise((resolve) => {
        const no = button("Cancel", () => dialog.close("no"));
        const yes = button(label, () => dialog.close("yes"), { class: "danger", disabled: Boolean(name) });
        const typed = el("input", {
            id: "typed",
            autocomplete: "off",
            spellcheck: "false",
            oninput: () => (yes.disabled = typed.value !== name),
            onkeydown: (event) => event.key === "Enter" && !yes.disabled && dialog.close("yes"),
        });
        const dialog = el(
            "dialog",
            { "aria-labelledby": "question", "aria-describedby": "consequence" },
            el("h2", { id: "question" }, question),
            el("p", { id: "consequence" }, consequence),
            name ? el("label", { for: "typed", class: "field" }, `Type ${name} to confirm`, typed) : null,
            el("div", { class: "line thin ends" }, no, yes),
        );
        dialog.addEventListener("close", () => {
            resolve(dialog.returnValue === "yes");
            dialog.remove();
        });
        document.body.append(dialog);
        dialog.showModal();
        (name ? typed : no).focus();
    });
}
