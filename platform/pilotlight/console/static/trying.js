// A request by form: made from the model's metadata, sent through the gateway, its answer shown.

import { answerOf } from "./answers.js";
import { button, el, fill, say } from "./dom.js";
import { fieldOf } from "./fields.js";
import { short } from "./format.js";
import { doing } from "./notices.js";
import { pathOf, request } from "./session.js";
import { services } from "./state.js";
import { encode } from "./tensors.js";

const AWAKE = "The form is made from what the model says of itself.";
const ASLEEP =
    "Nothing of this service runs. The form is made from what its model says, so loading it wakes the service.";

export function tryTab(id) {
    const model = el("select", { id: "model" });
    const revision = el("select", { id: "revision" }, el("option", { value: "" }, "by its share"));
    const token = el("input", {
        id: "bearer",
        type: "password",
        autocomplete: "off",
        placeholder: "where the service asks for one",
    });
    const form = el("form", { class: "stack", onsubmit: submit, onkeydown: quick });
    const answer = el("div", { role: "region", "aria-live": "polite", "aria-label": "Answer" });
    const load = button("Load the form", () => doing(load, models), { class: "first" });
    const asleep = el("p", { class: "faint" }, ASLEEP);
    const start = el("div", { class: "card stack" }, asleep, el("div", {}, load));
    const choice = el(
        "div",
        { class: "line" },
        el("label", { for: "model" }, "Model ", model),
        el("label", { for: "revision" }, "Revision ", revision),
        el("label", { for: "bearer" }, "Token ", token),
    );
    const node = el("div", { class: "stack" }, choice, start); // a service may want its token before it tells anything
    let fields = [];
    let begun = false;

    async function ask(path, { method = "POST", body, headers = {} } = {}) {
        const query = revision.value ? `?revision=${encodeURIComponent(revision.value)}` : "";
        const shown = token.value ? { Authorization: `Bearer ${token.value}` } : {};
        const sent = { body, headers: { "X-Pilotlight-Method": method, ...headers, ...shown } };
        return (await request("POST", `${pathOf(id)}/ask/${path}${query}`, sent)).json();
    }

    async function metadata(path) {
        const found = await ask(path, { method: "GET" });
        if (found.status !== 200) throw new Error(`the service answered ${found.status}: ${found.body.slice(0, 300)}`);
        return JSON.parse(found.body);
    }

    async function models() {
        begun = true;
        const names = (await metadata("v2/models")).models.map((each) => each.name ?? each);
        const own = id.split("/")[1];
        const first = names.includes(own) ? own : names[0];
        fill(
            model,
            names.map((name) => el("option", { value: name, selected: name === first }, name)),
        );
        fill(node, choice, form, answer);
        await inputs();
    }

    async function inputs() {
        fill(form, el("p", { class: "faint" }, "Looking…"));
        fill(answer);
        const about = await metadata(`v2/models/${encodeURIComponent(model.value)}`);
        fields = (about.inputs ?? []).map(fieldOf);
        const send = el("button", { class: "first", title: "Ctrl+Enter" }, "Send");
        const none = el("p", { class: "faint" }, "The model names no inputs.");
        fill(
            form,
            el(
                "section",
                { class: "card stack" },
                fields.length ? fields.map((each) => each.node) : none,
                el("div", {}, send),
            ),
        );
    }

    async function submit(event) {
        event.preventDefault();
        const send = form.querySelector("button");
        await doing(send, async () => {
            const tensors = await Promise.all(fields.map((each) => each.tensor()));
            const told = await ask(`v2/models/${encodeURIComponent(model.value)}/infer`, encode(tensors));
            fill(answer, answerOf(told));
        });
    }

    function quick(event) {
        if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
    }

    function drawRevisions(service) {
        const names = service.revisions.filter((each) => each.url).map((each) => each.name);
        if (revision.dataset.names === names.join()) return;
        revision.dataset.names = names.join();
        const kept = revision.value;
        fill(
            revision,
            el("option", { value: "" }, "by its share"),
            names.map((name) => el("option", { value: name, selected: name === kept }, short(service, name))),
        );
    }

    model.addEventListener("change", () => doing(model, inputs));
    return {
        node,
        update(service) {
            drawRevisions(service);
            const runs = service.revisions.some((each) => each.ready);
            say(asleep, runs ? AWAKE : ASLEEP);
            if (runs && !begun && services.has(id)) doing(load, models);
        },
        leave() {},
    };
}
