// A text editor for manifests: a textarea with line numbers, and the problems of its text with links to their lines.

import { button, el, fill, put, say } from "./dom.js";

const ROWS = 22;

export function editor(label, onchange) {
    const numbers = el("div", { class: "numbers", "aria-hidden": "true" });
    const area = el("textarea", {
        id: "manifest",
        rows: ROWS,
        wrap: "off",
        spellcheck: "false",
        autocapitalize: "off",
        "aria-describedby": "problems",
        oninput: () => {
            count();
            onchange(area.value);
        },
        onscroll: () => (numbers.scrollTop = area.scrollTop),
    });
    const verdict = el("p", { role: "status" });
    const list = el("ul", { class: "problems" });
    const node = el(
        "div",
        { class: "stack thin" },
        el("label", { for: "manifest" }, label),
        el("div", { class: "editor" }, numbers, area),
        el("div", { id: "problems" }, verdict, list),
    );

    function count() {
        const lines = area.value.split("\n").length;
        if (numbers.childElementCount === lines) return;
        fill(
            numbers,
            Array.from({ length: lines }, (_, index) => el("div", {}, String(index + 1))),
        );
    }

    function set(text) {
        area.value = text;
        count();
        onchange(text);
    }

    // Problems as `platformctl validate` reports them; each line that has one is marked.
    function mark(problems, sentence) {
        say(verdict, sentence);
        fill(list, problems.map(problemRow));
        put(area, "aria-invalid", problems.some((each) => each.severity === "error") ? "true" : null);
        [...numbers.children].forEach((line) => line.removeAttribute("class"));
        for (const each of problems) put(numbers.children[each.line - 1] ?? el("div"), "class", each.severity);
    }

    function problemRow(problem) {
        const what = [problem.path, problem.message].filter(Boolean).join(": ");
        const text = [problem.severity, problem.code].filter(Boolean).join(" ");
        const where = problem.line
            ? button(`Line ${problem.line}`, () => select(problem.line, problem.column), { class: "quiet small" })
            : null;
        return el("li", { class: problem.severity }, where, ` ${text}: ${what}`);
    }

    function select(line, column) {
        const lines = area.value.split("\n");
        const at = lines.slice(0, line - 1).reduce((sum, each) => sum + each.length + 1, 0) + Math.max(0, column - 1);
        area.focus();
        area.setSelectionRange(at, at);
        area.scrollTop = Math.max(0, (area.scrollHeight / lines.length) * (line - ROWS / 2));
    }

    count();
    return { node, area, set, mark };
}
