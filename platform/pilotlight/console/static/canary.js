// The canary of a service: its steps, its checks, and buttons to pause, promote and abort it.

import { bar } from "./bars.js";
import { checksTable } from "./checks.js";
import { confirmed } from "./dialogs.js";
import { button, el, fill, put, row, say, table } from "./dom.js";
import { dateAndClock, hrefOf, short } from "./format.js";
import { revisionHistory } from "./history.js";
import { doing } from "./notices.js";
import { phase } from "./phases.js";
import { ask, pathOf } from "./session.js";
import { canaries, listen, services } from "./state.js";

const PAST = ["Started", "Revision", "Ended", "Result", "Reason"];
const ENDED = new Set(["Promoted", "RolledBack", "Superseded"]);

export function canaryTab(id) {
    const state = phase();
    const log = el("a", {}, "Logs");
    const reason = el("p", { class: "message calm" });
    const facts = el("dl", { class: "facts" });
    const steps = el("ol", { class: "steps", "aria-label": "Steps" });
    const split = el("div", { class: "split" });
    const checks = checksTable();
    const before = table("Earlier canaries", PAST);
    const history = revisionHistory(id, () => sides(canaries.get(id)?.current));
    const buttons = actions(id);
    const shared = el("p", { class: "faint" });
    const empty = el(
        "div",
        { class: "card stack" },
        el("p", {}, "No canary has run. Start one:"),
        el("code", {}, `platformctl canary start ${id.split("/")[1]} -f service.yaml --steps 5,25,50,100`),
        shared,
    );
    const whole = el(
        "div",
        { class: "stack" },
        el(
            "section",
            { class: "card" },
            el("div", { class: "line" }, el("h2", {}, "Canary"), state.node, log, buttons.node),
            reason,
            steps,
            split,
            facts,
        ),
        el("section", { class: "card flush" }, el("h2", {}, "Checks"), checks.node),
        history.node,
        el("section", { class: "card flush earlier" }, el("h2", {}, "Earlier canaries"), before.node),
    );
    const node = el("div", {}, el("p", { class: "faint" }, "Loading…"));

    function draw() {
        const ledger = canaries.get(id);
        const service = services.get(id);
        if (!ledger || !service) return;
        const canary = ledger.current;
        fill(node, canary ? whole : empty);
        const parts = service.revisions.filter((each) => each.percent > 0 && each.percent < 100);
        const told = parts.map((each) => `${short(service, each.name)} ${each.percent} %`).join(", ");
        say(shared, told && `Traffic split without checks: ${told}`);
        if (!canary) return;
        state.update(canary.phase);
        put(log, "href", hrefOf(id, "logs", canary.revision));
        say(reason, [outcome(canary), canary.wish && `requested: ${canary.wish}`].filter(Boolean).join(" · "));
        drawSteps(steps, canary);
        fill(split, bar("Traffic", shares(canary, service)), legend(canary, service));
        drawFacts(facts, canary);
        checks.update(canary);
        buttons.update(canary);
        fill(
            before.body,
            ledger.past.map((each) => pastRow(each, service)),
        );
        before.node.closest("section").hidden = ledger.past.length === 0;
    }

    const stopListening = listen(draw);
    draw();
    return {
        node,
        update: draw,
        leave() {
            stopListening();
            history.leave();
        },
    };
}

// The revisions whose history is compared, in the colours of the split.
function sides(canary) {
    if (!canary) return [];
    return [
        [canary.stable, "stable", "--part0"],
        [canary.revision, "canary", "--part2"],
    ];
}

function shares(canary, service) {
    const rest = 100 - canary.weight;
    return [
        { name: short(service, canary.stable), value: rest, told: `${rest} %`, tone: 0 },
        { name: short(service, canary.revision), value: canary.weight, told: `${canary.weight} %`, tone: 2 },
    ];
}

function legend(canary, service) {
    const [stable, fresh] = shares(canary, service);
    const entry = (part, word) =>
        el(
            "li",
            {},
            el("span", { class: `key part${part.tone}` }),
            `${word} `,
            el("code", {}, part.name),
            el("span", { class: "figure" }, part.told),
        );
    return el("ul", { class: "legend" }, entry(stable, "stable"), entry(fresh, "canary"));
}

// What ended it, at which traffic: a rollback sets its weight to 0, its step stays.
function outcome(canary) {
    const word = { RolledBack: "Rolled back", Superseded: "Superseded by a newer release" }[canary.phase];
    if (!word) return canary.reason;
    const place = canary.step_at ? `at ${canary.policy.steps[canary.step]} %` : "before its first step";
    return [`${word} ${place}`, canary.reason].filter(Boolean).join(": ");
}

function drawSteps(node, canary) {
    const last = { Promoted: "done", RolledBack: "rolled back", Superseded: "superseded" }[canary.phase] ?? "current";
    const ended = ENDED.has(canary.phase);
    fill(
        node,
        canary.policy.steps.map((percent, index) => {
            const reached = index < canary.step || canary.phase === "Promoted";
            const here = index === canary.step && (canary.step_at || !ended);
            const word = reached ? "done" : here ? last : ended ? "not reached" : "next";
            return el(
                "li",
                { class: word.replace(" ", ""), "aria-current": word === "current" ? "step" : null },
                `${percent} %`,
                el("span", { class: ended && word !== "done" ? "" : "hidden" }, ` ${word}`),
            );
        }),
    );
}

function drawFacts(node, canary) {
    const policy = canary.policy;
    const ended = ENDED.has(canary.phase);
    const needed = canary.weight < 100 ? policy.bake_s : policy.keep_stable_s; // the stable revision is kept after it
    const facts = [
        !ended && ["In this step", `${Math.round(Math.min(canary.baked_s, needed))} of ${needed} s`],
        ["Interval", `every ${policy.interval_s} s`],
        ["Consecutive failures", `${canary.failures} of ${policy.failure_limit}`],
        ["Elapsed", `${Math.round(canary.elapsed_s)}${ended ? "" : ` of ${policy.deadline_s}`} s`],
        ["Promotion", policy.auto_promote ? "automatic" : "manual"],
        ["Started", dateAndClock(canary.started_at)],
        ended && ["Ended", dateAndClock(canary.ended_at)],
    ].filter(Boolean);
    fill(
        node,
        facts.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))),
    );
}

function pastRow(canary, service) {
    const end = phase();
    end.update(canary.phase);
    const when = [canary.started_at, canary.ended_at].map((at) =>
        el("time", { class: "faint figure", datetime: at }, dateAndClock(at)),
    );
    const log = el("a", { href: hrefOf(service.id, "logs", canary.revision) }, "Logs");
    const revision = el("div", {}, el("code", {}, short(service, canary.revision)), " ", log);
    return row(PAST, [when[0], revision, when[1], end.node, canary.reason]);
}

const QUESTIONS = {
    promote: [
        "Promote to the next step?",
        "The canary gets the traffic of the next step now, whatever the result of its checks.",
        "Promote",
    ],
    "promote-full": ["Promote fully?", "The canary gets all traffic, and its checks end.", "Promote fully"],
    abort: ["Abort the canary?", "All traffic goes back to the stable revision.", "Abort"],
};

function actions(id) {
    const made = {
        pause: button("Pause", () => wish("pause")),
        resume: button("Resume", () => wish("resume")),
        promote: button("Promote", () => wish("promote")),
        "promote-full": button("Promote fully", () => wish("promote-full")),
        abort: button("Abort", () => wish("abort"), { class: "danger" }),
    };

    async function wish(word) {
        if (QUESTIONS[word] && !(await confirmed(...QUESTIONS[word]))) return;
        await doing(
            made[word],
            () => ask("PUT", `${pathOf(id)}/canary/wish`, { wish: word }),
            "Requested. The controller does it within its interval.",
        );
    }

    const node = el(
        "div",
        { class: "line thin ends change", role: "group", "aria-label": "Canary actions" },
        Object.values(made),
    );
    const update = (canary) => {
        const over = ENDED.has(canary.phase);
        put(node, "hidden", over);
        made.pause.hidden = canary.phase === "Paused";
        made.resume.hidden = canary.phase !== "Paused";
    };
    return { node, update };
}
