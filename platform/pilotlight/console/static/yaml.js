// A document as YAML, with quotes where a plain word would have another meaning. Pure.

const PLAIN = /^[A-Za-z_/.][\w ./@%+(),=<>-]*$/;
const WORDS = /^(?:true|false|null|yes|no|on|off|y|n|~)$/i;

export function yaml(value, depth = 0) {
    if (Array.isArray(value)) return value.length ? listed(value, depth) : " []";
    if (value !== null && typeof value === "object") return Object.keys(value).length ? mapped(value, depth) : " {}";
    return ` ${scalar(value, depth)}`;
}

function mapped(value, depth) {
    const pad = "  ".repeat(depth);
    return Object.entries(value)
        .map(([name, each]) => `\n${pad}${word(name)}:${yaml(each, depth + 1)}`)
        .join("");
}

// The first key of a map is on the line of the dash.
function listed(value, depth) {
    const pad = "  ".repeat(Math.max(0, depth - 1));
    return value.map((each) => `\n${pad}-${compact(yaml(each, Math.max(1, depth)), each)}`).join("");
}

function compact(text, value) {
    const nested = value !== null && typeof value === "object" && !Array.isArray(value) && Object.keys(value).length;
    return nested ? ` ${text.trimStart()}` : text;
}

function scalar(value, depth) {
    if (typeof value !== "string") return JSON.stringify(value);
    if (value.includes("\n")) {
        const pad = "  ".repeat(depth);
        const ends = value.endsWith("\n");
        const lines = (ends ? value.slice(0, -1) : value).split("\n").map((line) => (line ? pad + line : line));
        return `|${ends ? "" : "-"}\n${lines.join("\n")}`;
    }
    return word(value);
}

function word(text) {
    return PLAIN.test(text) && !WORDS.test(text) && !text.endsWith(" ") && !/ #|: /.test(text)
        ? text
        : JSON.stringify(text);
}
