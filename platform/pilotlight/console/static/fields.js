// One field for each input of a model: numbers as JSON, text as text, a file where the input looks like a picture.

import { el } from "./dom.js";
import { pixels } from "./pictures.js";
import { blank, fromBytes, fromJson, fromPixels, fromText, layout, looksEncoded } from "./tensors.js";

// `tensor()` is what the field says, or an error in words.
export function fieldOf(input, index) {
    const id = `input-${index}`;
    const kind = kindOf(input);
    const made = kind(input, id);
    const label = el(
        "label",
        { for: id },
        el("strong", {}, input.name),
        el("span", { class: "faint" }, `  ${input.datatype} [${input.shape.join(", ")}]`),
    );
    return { node: el("div", { class: "field" }, label, made.node), tensor: made.tensor };
}

function kindOf(input) {
    if (layout(input)) return picture;
    if (looksEncoded(input)) return encoded;
    return input.datatype === "BYTES" ? text : numbers;
}

function numbers(input, id) {
    const area = el(
        "textarea",
        { id, spellcheck: "false", placeholder: `JSON numbers of the shape [${input.shape}]` },
        blank(input),
    );
    return { node: area, tensor: async () => fromJson(input, area.value) };
}

function text(input, id) {
    const area = el("textarea", { id, placeholder: "Text; one element a line where there are several" });
    return { node: area, tensor: async () => fromText(input, area.value) };
}

function encoded(input, id) {
    const area = el("textarea", { id, placeholder: "Text, or choose a file below" });
    const file = el("input", { type: "file", "aria-label": `File for ${input.name}` });
    const tensor = async () =>
        file.files[0] ? fromBytes(input, await file.files[0].arrayBuffer()) : fromText(input, area.value);
    return { node: el("div", {}, area, file), tensor };
}

function picture(input, id) {
    const shape = layout(input);
    const file = el("input", { id, type: "file", accept: "image/*", onchange: () => show() });
    const canvas = el("canvas", {
        class: "preview",
        role: "img",
        "aria-label": `${input.name} as the model sees it`,
        hidden: true,
    });
    const size = shape.width && shape.height ? `${shape.width} × ${shape.height}` : "its own size";
    const said = el(
        "p",
        { class: "faint" },
        `A picture; it is brought to ${size}, ${shape.channels} channels, ${shape.order}.`,
    );

    async function show() {
        canvas.hidden = !file.files[0];
        return file.files[0] ? pixels(file.files[0], shape, canvas) : null;
    }

    async function tensor() {
        const found = await show();
        if (!found) throw new Error(`${input.name}: choose a picture`);
        return fromPixels(input, shape, found);
    }
    return { node: el("div", {}, file, said, canvas), tensor };
}
