// Deploys a service from a manifest: typed or opened from a file, validated as it changes, compared, then applied.

import { button, el, fill, say } from "./dom.js";
import { editor } from "./editor.js";
import { hrefOf } from "./format.js";
import { phase } from "./phases.js";
import { ask, pathOf, request } from "./session.js";
import { listen, services } from "./state.js";
import { documentsOf } from "./streams.js";

const PAUSE_MS = 400; // after the last key, before the text is validated
const MAX_BYTES = 200000;
const SERVING = ["Ready", "Standby", "Parked"];
const EXAMPLE = `apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata:
  name: my-model
spec:
  predictor:
    minReplicas: 0
    maxReplicas: 3
    model:
      modelFormat:
        name: onnx
      protocolVersion: v2
      storageUri: file:///path/to/model.onnx
`;

// `id` names the service that is edited; without it the manifest may be of any.
export function deployPage(id = "") {
    const review = button("Review changes", compare, { class: "first", disabled: true });
    const write = editor("Manifest (YAML or JSON)", changed);
    const file = el("input", { type: "file", id: "file", accept: ".yaml,.yml,.json", onchange: open });
    const example = button("Insert an example", () => write.set(EXAMPLE));
    const result = el("div", { class: "stack", role: "region", "aria-live": "polite", "aria-label": "Review" });
    const title = id ? `Edit ${id}` : "Deploy a service";
    const tools = el("div", { class: "line thin" }, el("label", { for: "file" }, "Open a file ", file), example);
    const hint = "Models of this machine need an absolute path, such as file:///models/model.onnx.";
    const node = el(
        "div",
        { class: "page stack" },
        el(
            "nav",
            { class: "crumbs", "aria-label": "Breadcrumb" },
            el("a", { href: "#/" }, "Services"),
            id ? [" / ", el("a", { href: hrefOf(id) }, id)] : null,
        ),
        el("h1", {}, title),
        el(
            "section",
            { class: "card stack" },
            id ? null : tools,
            write.node,
            el("p", { class: "faint" }, hint),
            el("div", { class: "line thin" }, review, id ? el("a", { href: hrefOf(id) }, "Cancel") : null),
        ),
        result,
    );
    let timer = 0;
    let asked = 0;
    let leave = () => {};

    function changed(text) {
        clearTimeout(timer);
        review.disabled = true;
        fill(result);
        leave();
        asked += 1;
        if (!text.trim()) write.mark([], "");
        else timer = setTimeout(() => validate(text, asked), PAUSE_MS);
    }

    async function validate(text, number) {
        try {
            if (text.length > MAX_BYTES) throw new Error(`The manifest is longer than ${MAX_BYTES / 1000} kB.`);
            const found = await ask("POST", "/manifests/validate", { text, service: id });
            if (number !== asked) return;
            write.mark(found.problems, found.valid ? `Valid: ${found.services.map(summary).join("; ")}` : "Not valid:");
            review.disabled = !found.valid;
        } catch (error) {
            if (number === asked) write.mark([problemOf(error)], "Not valid:");
        }
    }

    async function open() {
        const [chosen] = file.files;
        if (chosen?.size > MAX_BYTES) write.mark([problemOf(new Error(`${chosen.name} is too large`))], "Not opened:");
        else if (chosen) write.set(await chosen.text());
    }

    async function compare() {
        const text = write.area.value;
        const number = asked;
        review.disabled = true;
        fill(result, el("p", { class: "faint" }, "Comparing with what is deployed…"));
        let found = { error: "" };
        try {
            found = await ask("POST", "/manifests/compare", { text, service: id });
        } catch (error) {
            found = { error: error.message };
        }
        if (number !== asked) return;
        review.disabled = false;
        if (found.valid === false) return void (write.mark(found.problems, "Not valid:"), fill(result));
        const start = button("Deploy", () => apply(text, start), { class: "first" });
        fill(result, found.error ? refusal(found.error) : differences(found), el("div", {}, start));
        start.focus();
    }

    async function apply(text, start) {
        start.disabled = review.disabled = write.area.readOnly = true;
        const steps = el("ol", { class: "progress", "aria-label": "Progress" });
        result.append(el("section", { class: "card stack" }, el("h2", {}, "Progress"), steps));
        try {
            const outcome = await deployed(text, id, (line) => steps.append(step(line.step, line.text)));
            leave = follow(outcome.applied, steps);
        } catch (error) {
            if (error.problems) write.mark(error.problems, "Not valid:");
            steps.append(step("Failed", error.message, "bad"));
        } finally {
            write.area.readOnly = false;
            review.disabled = false;
        }
    }

    if (id)
        ask("GET", `${pathOf(id)}/manifest`).then(
            ({ text }) => write.set(text),
            (error) => write.mark([problemOf(error)], ""),
        );
    return {
        node,
        leave() {
            clearTimeout(timer);
            leave();
        },
    };
}

function summary({ namespace, name, mode, objects, exists }) {
    return `${exists ? "updates" : "creates"} ${namespace}/${name}, ${mode}, ${objects} objects`;
}

function problemOf(error) {
    return { severity: "error", code: "", path: "", message: error.message, line: 0, column: 0 };
}

function refusal(message) {
    return el("p", { class: "refusal", role: "alert" }, message);
}

function differences({ manifest, objects, models }) {
    const same = !manifest.length && !objects.length;
    const changes = objects.map(({ change, kind, name, diff }) =>
        el("details", {}, el("summary", {}, `${kind} ${name}: ${change}`), diffOf(diff)),
    );
    return el(
        "section",
        { class: "card stack" },
        el("h2", {}, "Changes"),
        same ? el("p", {}, "No changes. Deploying it does nothing.") : null,
        manifest.length ? diffOf(manifest) : null,
        models.map((line) => el("p", {}, "Changed model files: ", el("code", {}, line))),
        changes.length ? el("h3", {}, `Objects (${changes.length})`) : null,
        changes,
    );
}

function diffOf(lines) {
    const tone = (line) =>
        /^(\+\+\+|---|@@)/.test(line) ? "faint" : ({ "+": "added", "-": "removed" }[line[0]] ?? "");
    return el(
        "pre",
        { class: "diff", tabindex: "0" },
        lines.map((line) => el("span", { class: tone(line) }, `${line}\n`)),
    );
}

function step(name, text, tone = "") {
    return el("li", { class: tone }, el("strong", {}, name), ` ${text}`);
}

async function deployed(text, service, onstep) {
    const headers = { "Content-Type": "application/json" };
    const answer = await request("POST", "/manifests/deploy", { body: JSON.stringify({ text, service }), headers });
    for await (const line of documentsOf(answer)) {
        if (line.applied) return line;
        if (line.error) throw Object.assign(new Error([line.error, line.hint].filter(Boolean).join(". ")), line);
        onstep(line);
    }
    throw new Error("The connection was lost. The deploy continues; see the page of the service.");
}

// Shows how each service starts, by the feed, until it serves or has failed.
function follow(applied, steps) {
    const rows = applied.map(({ namespace, name, generation }) => {
        const state = phase("Progressing");
        const text = el("span", {});
        const row = el("li", {}, state.node, " ", text);
        steps.append(row);
        return { id: `${namespace}/${name}`, generation, state, text, row, ended: false };
    });
    const draw = () => rows.filter((each) => !each.ended).forEach(drawRow);
    const stop = listen(draw);
    draw();
    return stop;
}

function drawRow(row) {
    const service = services.get(row.id);
    if (!service || service.generation < row.generation) return;
    const [newest] = service.revisions;
    const failure = service.rolled_back || (service.phase === "Failed" && service.message) || newest?.failure;
    const serves = SERVING.includes(service.phase) && service.generation === row.generation;
    row.ended = Boolean(failure) || serves;
    row.state.update(failure ? "Failed" : service.phase);
    say(row.text, [row.id, failure || service.message].filter(Boolean).join(": "));
    if (!row.ended) return;
    const next = failure ? ["Open its logs", hrefOf(row.id, "logs")] : ["Open the service", hrefOf(row.id)];
    row.row.append(" ", el("a", { href: next[1] }, next[0]));
}
