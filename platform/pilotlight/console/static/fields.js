// A field for each input of a model: numbers as JSON, text, or a file where the input takes an image.

import { el, put, say } from "./dom.js";
import { pixels } from "./pictures.js";
import { blank, fromBytes, fromJson, fromPixels, fromText, layout, looksEncoded } from "./tensors.js";

// `tensor()` returns the value or throws an error, which `fail` shows at the field.
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
    const error = el("p", { id: `${id}-error`, class: "fielderror", role: "alert" });
    const node = el("div", { class: "field" }, label, made.node, error);
    const fail = (sentence) => {
        say(error, sentence);
        const control = node.querySelector(`#${id}`);
        put(control, "aria-invalid", sentence ? "true" : null);
        put(control, "aria-describedby", sentence ? error.id : null);
    };
    return { node, tensor: made.tensor, fail };
}

function kindOf(input) {
    if (layout(input)) return picture;
    if (looksEncoded(input)) return encoded;
    return input.datatype === "BYTES" ? text : numbers;
}

function numbers(input, id) {
    const area = el(
        "textarea",
        { id, spellcheck: "false", placeholder: `JSON numbers of shape [${input.shape}]` },
        blank(input),
    );
    return { node: area, tensor: async () => fromJson(input, area.value) };
}

function text(input, id) {
    const area = el("textarea", { id, placeholder: "Text; one element per line" });
    return { node: area, tensor: async () => fromText(input, area.value) };
}

function encoded(input, id) {
    const area = el("textarea", { id, placeholder: "Text, or choose a file below" });
    const file = el("input", { type: "file", "aria-label": `File for ${input.name}` });
    const tensor = async () =>
        file.files[0]
            ? { ...fromBytes(input, await file.files[0].arrayBuffer()), file: file.files[0].name }
            : fromText(input, area.value);
    return { node: el("div", {}, area, file), tensor };
}

function picture(input, id) {
    const shape = layout(input);
    const file = el("input", { id, type: "file", accept: "image/*", onchange: () => show() });
    const canvas = el("canvas", {
        class: "preview",
        role: "img",
        "aria-label": `${input.name} as the model gets it`,
        hidden: true,
    });
    const size = shape.width && shape.height ? `${shape.width} × ${shape.height}` : "its own size";
    const said = el(
        "p",
        { class: "faint" },
        `An image. It is resized to ${size}, ${shape.channels} channels, ${shape.order}.`,
    );

    async function show() {
        canvas.hidden = !file.files[0];
        return file.files[0] ? pixels(file.files[0], shape, canvas) : null;
    }

    async function tensor() {
        const found = await show();
        if (!found) throw new Error("choose an image");
        const { width, height } = found;
        return { ...fromPixels(input, shape, found), image: { ...shape, width, height, file: file.files[0].name } };
    }
    return { node: el("div", {}, file, said, canvas), tensor };
}
