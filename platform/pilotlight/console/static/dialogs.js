// Asks before something is done that cannot be taken back at once. Escape and Cancel mean no.

import { button, el } from "./dom.js";

export function confirmed(question, consequence, label) {
    return new Promise((resolve) => {
        const no = button("Cancel", () => dialog.close("no"));
        const yes = button(label, () => dialog.close("yes"), { class: "danger" });
        const dialog = el(
            "dialog",
            { "aria-labelledby": "question", "aria-describedby": "consequence" },
            el("h2", { id: "question" }, question),
            el("p", { id: "consequence" }, consequence),
            el("div", { class: "line thin ends" }, no, yes),
        );
        dialog.addEventListener("close", () => {
            resolve(dialog.returnValue === "yes");
            dialog.remove();
        });
        document.body.append(dialog);
        dialog.showModal();
        no.focus();
    });
}
