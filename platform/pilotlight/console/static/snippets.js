// The request of a form as code: a curl command, and Python with `pilotlight.Client`. Pure. Tokens become placeholders.

const NUMPY = { BOOL: "bool_", FP16: "float16", BF16: "float32", FP32: "float32", FP64: "float64" };
const MOST_CHARACTERS = 2000; // of the values of one input

function quoted(text) {
    return `'${text.replaceAll("'", "'\\''")}'`;
}

function curl(url, token, body, flags = "") {
    const header = token ? " \\\n  -H 'Authorization: Bearer TOKEN'" : "";
    return `curl${flags} ${quoted(url)}${header} \\\n  -H 'Content-Type: application/json' \\\n  -d ${quoted(JSON.stringify(body))}`;
}

function client(url, token) {
    return `client = pilotlight.Client(${JSON.stringify(url)}${token ? ', token="TOKEN"' : ""})`;
}

export function chatAsCurl({ url, model, token }, body) {
    return curl(`${url}/v1/chat/completions`, token, { model, ...body }, " -N");
}

export function chatAsPython({ url, model, token }, { messages, max_tokens }) {
    const limit = max_tokens ? `, max_tokens=${max_tokens}` : "";
    return [
        "import pilotlight\n",
        client(url, token),
        `messages = ${JSON.stringify(messages)}`,
        `for part in client.stream_chat(messages, model=${JSON.stringify(model)}${limit}):`,
        '    print(part, end="", flush=True)',
    ].join("\n");
}

export function inferAsCurl({ url, model, token }, tensors) {
    if (tensors.some((each) => each.raw)) return "# An image is sent as a binary tensor: use the Python client.";
    return curl(`${url}/v2/models/${encodeURIComponent(model)}/infer`, token, { inputs: tensors });
}

export function inferAsPython({ url, model, token }, tensors, outputs) {
    const files = tensors.some((each) => each.image) ? ["from PIL import Image"] : [];
    const setup = tensors.flatMap(imageLines);
    const inputs = tensors.map((each) => `    ${JSON.stringify(each.name)}: ${valueOf(each)},`);
    return [
        ...["import numpy as np", "import pilotlight", ...files, ""],
        client(url, token),
        ...setup,
        `result = client.infer(${JSON.stringify(model)}, {`,
        ...inputs,
        "})",
        ...outputs.map((each) => `print(result[${JSON.stringify(each.name)}])`),
    ].join("\n");
}

function imageLines({ image, datatype }) {
    if (!image) return [];
    const mode = { 1: "L", 3: "RGB", 4: "RGBA" }[image.channels];
    const scale = datatype.startsWith("FP") ? " / 255" : "";
    return [
        `image = Image.open(${JSON.stringify(image.file)}).convert("${mode}").resize((${image.width}, ${image.height}))`,
        `pixels = np.asarray(image).reshape(${image.height}, ${image.width}, ${image.channels})${scale}`,
        ...(image.order === "CHW" ? ["pixels = pixels.transpose(2, 0, 1)"] : []),
    ];
}

function valueOf({ datatype, shape, data, image, file }) {
    const size = `.reshape(${shape.join(", ")})`;
    const type = NUMPY[datatype] ?? datatype.toLowerCase();
    if (image) return `pixels.astype(np.${type})${size}`;
    if (file) return `np.array([open(${JSON.stringify(file)}, "rb").read()], dtype=object)${size}`;
    if (datatype === "BYTES") return `np.array(${JSON.stringify(data)}, dtype=object)${size}`;
    const values = JSON.stringify(data).replaceAll("true", "True").replaceAll("false", "False");
    if (values.length > MOST_CHARACTERS) return `np.zeros((${shape.join(", ")}), dtype=np.${type})`;
    return `np.array(${values}, dtype=np.${type})${size}`;
}
