// Elements made by name. Text only ever becomes text nodes: nothing that a model, a log or a user wrote is markup here.

const SVG = "http://www.w3.org/2000/svg";

export function el(tag, attributes = {}, ...children) {
    return filled(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
    return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(node, attributes, children) {
    for (const [name, value] of Object.entries(attributes)) put(node, name, value);
    node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
    return node;
}

// `on…` takes a function; null and false leave the attribute out.
export function put(node, name, value) {
    if (typeof value === "function") node.addEventListener(name.slice(2), value);
    else if (value === null || value === undefined || value === false) node.removeAttribute(name);
    else {
        const text = value === true ? "" : String(value);
        if (node.getAttribute(name) !== text) node.setAttribute(name, text);
    }
}

// Only if it differs: a selection in the text survives, and no layout is needed.
export function say(node, text) {
    const written = text === null || text === undefined ? "" : String(text);
    if (node.textContent !== written) node.textContent = written;
}

// Unchanged children stay: a button that is removed and added again loses a press.
export function fill(node, ...children) {
    const wanted = children.flat().filter(Boolean);
    const there = node.childNodes;
    if (wanted.length === there.length && wanted.every((child, index) => child === there[index])) return;
    node.replaceChildren(...wanted);
}

// Rows of a table or list by key: focus and scroll position stay.
export function keyed(parent, make) {
    const kept = new Map();
    return (items, keyOf) => {
        const names = new Set(items.map(keyOf));
        for (const [name, row] of kept) {
            if (!names.has(name)) {
                row.node.remove();
                kept.delete(name);
            }
        }
        items.forEach((item, index) => {
            const name = keyOf(item);
            if (!kept.has(name)) kept.set(name, make(item));
            const row = kept.get(name);
            if (parent.children[index] !== row.node) parent.insertBefore(row.node, parent.children[index] ?? null);
            row.update(item);
        });
    };
}

// A table with headings; each cell carries its own, which a narrow screen shows beside the value.
export function table(caption, headings) {
    const body = el("tbody", { role: "rowgroup" });
    const head = headings.map((title) => el("th", { scope: "col", role: "columnheader" }, title));
    const node = el(
        "table",
        { role: "table" },
        el("caption", { class: "hidden" }, caption),
        el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, head)),
        body,
    );
    return { node: el("div", { class: "scrolls" }, node), body };
}

export function row(headings, cells, attributes = {}) {
    const made = cells.map((cell, index) => el("td", { role: "cell", "data-label": headings[index] }, cell));
    return el("tr", { role: "row", ...attributes }, made);
}

export function button(label, onclick, attributes = {}) {
    return el("button", { type: "button", onclick, ...attributes }, label);
}
