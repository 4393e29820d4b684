// Try it: a chat for text models, else a form made from the model's metadata. Requests go through the gateway.

import { answerOf, errorOf } from "./answers.js";
import { chatPanel } from "./chat.js";
import { button, el, fill, put, say } from "./dom.js";
import { fieldOf } from "./fields.js";
import { short } from "./format.js";
import { notice } from "./notices.js";
import { pathOf, request } from "./session.js";
import { chatAsCurl, chatAsPython, inferAsCurl, inferAsPython } from "./snippets.js";
import { services } from "./state.js";
import { documentsOf } from "./streams.js";
import { encode } from "./tensors.js";

const LINES = "application/x-ndjson";
const AWAKE = "The form is made from the metadata of the model.";
const ASLEEP = "The service is scaled to zero. Loading the form starts a replica.";
const FAILED = "The service failed and cannot respond. Fix it first; the reason is above.";

export function tryTab(id) {
    const model = el("select", { id: "model", onchange: () => run(inputs) });
    const revision = el("select", { id: "revision", onchange: () => code.draw() });
    const token = el("input", {
        id: "bearer",
        type: "password",
        autocomplete: "off",
        placeholder: "if the service needs one",
    });
    const panel = el("div", {});
    const answer = el("div", { role: "region", "aria-live": "polite", "aria-label": "Response" });
    const load = button("Load the form", () => run(models), { class: "first" });
    const note = el("p", { class: "faint" }, ASLEEP);
    const error = el("p", { class: "fielderror", role: "alert" });
    const start = el("div", { class: "card stack" }, note, error, el("div", {}, load));
    const code = codeBlocks();
    const choice = el(
        "div",
        { class: "line" },
        el("label", { for: "model" }, "Model ", model),
        el("label", { for: "revision" }, "Revision ", revision),
        el("label", { for: "bearer" }, "Token ", token),
    );
    const node = el("div", { class: "stack" }, choice, start); // a service may need its token for its metadata
    let begun = false;
    let leave = () => {};

    // An error is shown where the form would be.
    async function run(action) {
        load.disabled = true;
        say(error, "");
        try {
            await action();
        } catch (problem) {
            say(error, problem.message);
            fill(node, choice, start);
        }
        load.disabled = false;
    }

    function send(path, { method = "POST", body, headers = {}, signal } = {}) {
        const query = revision.value ? `?revision=${encodeURIComponent(revision.value)}` : "";
        const access = token.value ? { Authorization: `Bearer ${token.value}` } : {};
        const sent = { body, headers: { "X-Pilotlight-Method": method, ...headers, ...access }, signal };
        return request("POST", `${pathOf(id)}/ask/${path}${query}`, sent);
    }

    async function metadata(path) {
        const found = await (await send(path, { method: "GET" })).json();
        if (found.status !== 200) throw new Error(errorOf(found.status, found.body));
        return JSON.parse(found.body);
    }

    // An engine without V2, such as vLLM, lists its models by OpenAI's API; all of them chat.
    async function models() {
        begun = true;
        const listed = await metadata("v2/models").catch(async (problem) => {
            const found = await metadata("v1/models").catch(() => ({}));
            if (!found.data?.length) throw problem;
            return { models: found.data.map((each) => each.id), chats: true };
        });
        const names = listed.models.map((each) => each.name ?? each);
        const own = id.split("/")[1];
        const first = names.includes(own) ? own : names[0];
        model.dataset.chats = listed.chats ?? "";
        fill(
            model,
            names.map((name) => el("option", { value: name, selected: name === first }, name)),
        );
        await inputs();
    }

    async function inputs() {
        leave();
        fill(answer);
        const about = model.dataset.chats
            ? { chats: true }
            : await metadata(`v2/models/${encodeURIComponent(model.value)}`);
        const chats =
            about.chats ?? about.inputs?.some((each) => each.name === "messages" && each.datatype === "BYTES");
        fill(panel, chats ? chat() : form(about));
        fill(node, choice, panel, answer, code.node);
    }

    function place() {
        const service = services.get(id);
        const own = service?.revisions.find((each) => each.name === revision.value)?.url;
        return { url: (own || service?.url || "").replace(/\/$/, ""), model: model.value, token: Boolean(token.value) };
    }

    function chat() {
        const made = chatPanel(stream, (body) =>
            code.set(() => [chatAsCurl(place(), body), chatAsPython(place(), body)]),
        );
        ({ leave } = made);
        return made.node;
    }

    async function* stream(body, signal) {
        const headers = { Accept: LINES, "Content-Type": "application/json" };
        const sent = { body: JSON.stringify({ model: model.value, ...body }), headers, signal };
        let [rest, all] = ["", ""];
        for await (const line of documentsOf(await send("v1/chat/completions", sent))) {
            if (line.error) throw new Error(line.error);
            if (line.part === undefined && line.status !== 200) throw new Error(errorOf(line.status, all));
            if (line.part === undefined) return yield line;
            all = (all + line.part).slice(0, 5000);
            const parts = (rest + line.part).split("\n");
            rest = parts.pop();
            for (const part of parts.filter((each) => each.startsWith("data: {"))) {
                const event = JSON.parse(part.slice("data: ".length));
                if (event.error) throw new Error(event.error.message ?? JSON.stringify(event.error));
                if (event.choices?.[0]?.delta?.content) yield event.choices[0].delta.content;
            }
        }
    }

    function form({ inputs: wanted = [], outputs = [] }) {
        const fields = wanted.map(fieldOf);
        const press = el("button", { class: "first", title: "Ctrl+Enter" }, "Send");
        const draw = () =>
            code.set(async () => {
                const tensors = await Promise.all(fields.map((each) => each.tensor()));
                return [inferAsCurl(place(), tensors), inferAsPython(place(), tensors, outputs)];
            });
        const submit = async (event) => {
            event.preventDefault();
            press.disabled = true;
            fill(answer, await sendForm(fields));
            press.disabled = false;
        };
        const quick = (event) =>
            event.key === "Enter" && (event.ctrlKey || event.metaKey) && event.currentTarget.requestSubmit();
        draw();
        return el(
            "form",
            { class: "card stack", onsubmit: submit, onkeydown: quick, oninput: draw },
            fields.length ? fields.map((each) => each.node) : el("p", { class: "faint" }, "The model has no inputs."),
            el("div", {}, press),
        );
    }

    // A value that does not fit is an error at its field; what the service refuses is its response.
    async function sendForm(fields) {
        const tensors = await Promise.all(
            fields.map((each) =>
                each.tensor().then(
                    (tensor) => (each.fail(""), tensor),
                    (problem) => each.fail(problem.message),
                ),
            ),
        );
        if (tensors.some((each) => !each)) return null;
        try {
            const sent = await send(`v2/models/${encodeURIComponent(model.value)}/infer`, encode(tensors));
            return answerOf(await sent.json());
        } catch (problem) {
            return el("p", { class: "card fielderror", role: "alert" }, problem.message);
        }
    }

    function drawRevisions(service) {
        const names = service.revisions.filter((each) => each.url).map((each) => each.name);
        if (revision.dataset.names === names.join()) return;
        revision.dataset.names = names.join();
        const chosen = revision.value;
        fill(
            revision,
            el("option", { value: "" }, "by traffic split"),
            names.map((name) => el("option", { value: name, selected: name === chosen }, short(service, name))),
        );
    }

    return {
        node,
        update(service) {
            drawRevisions(service);
            const ready = service.revisions.some((each) => each.ready);
            const failed = service.phase === "Failed" && !ready;
            say(note, failed ? FAILED : ready ? AWAKE : ASLEEP);
            put(load, "hidden", failed);
            if (failed) fill(node, start);
            else if (!begun && node.firstChild === start) fill(node, choice, start);
            if (ready && !begun) run(models);
        },
        leave: () => leave(),
    };
}

// The request as code, with a button to copy each form; made when it is opened.
function codeBlocks() {
    const texts = [el("pre", { tabindex: "0" }), el("pre", { tabindex: "0" })];
    const node = el(
        "details",
        { class: "card code", ontoggle: () => draw() },
        el("summary", {}, "Use it from code: curl, Python"),
        ["curl", "Python"].map((name, index) =>
            el(
                "div",
                {},
                button(`Copy as ${name}`, () => copy(texts[index].textContent), { class: "small" }),
                texts[index],
            ),
        ),
    );
    let make = async () => ["", ""];

    async function draw() {
        if (!node.open) return;
        const made = await Promise.resolve(make()).catch((problem) => [`# ${problem.message}`, `# ${problem.message}`]);
        texts.forEach((each, index) => say(each, made[index]));
    }

    async function copy(text) {
        await navigator.clipboard.writeText(text);
        notice("Copied.");
    }

    return {
        node,
        draw,
        set(made) {
            make = made;
            draw();
        },
    };
}
