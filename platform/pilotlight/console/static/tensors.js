// V2 requests from the values of a form and the metadata of the model. Pure: values in, bytes out.

const SIZES = {
    BOOL: 1,
    UINT8: 1,
    INT8: 1,
    UINT16: 2,
    INT16: 2,
    FP16: 2,
    BF16: 2,
    UINT32: 4,
    INT32: 4,
    FP32: 4,
    UINT64: 8,
    INT64: 8,
    FP64: 8,
};
const WRITERS = {
    UINT8: ["setUint8"],
    INT8: ["setInt8"],
    UINT16: ["setUint16"],
    INT16: ["setInt16"],
    UINT32: ["setUint32"],
    INT32: ["setInt32"],
    FP32: ["setFloat32"],
    FP64: ["setFloat64"],
};
const CHANNELS = [1, 3, 4];

// How an image is laid out in an input: order, channels, width and height; null: it takes no image.
export function layout({ datatype, shape }) {
    if (datatype === "BYTES" || !WRITERS[datatype] || shape.length < 3) return null;
    const [first, second, third] = shape.slice(-3);
    const last = CHANNELS.includes(third) && !CHANNELS.includes(first);
    if (!last && !CHANNELS.includes(first)) return null;
    const [channels, height, width] = last ? [third, first, second] : [first, second, third];
    if (Math.min(height > 0 ? height : 32, width > 0 ? width : 32) < 8) return null;
    return { order: last ? "HWC" : "CHW", channels, width: width > 0 ? width : 0, height: height > 0 ? height : 0 };
}

export function looksEncoded({ datatype, name }) {
    return datatype === "BYTES" && /image|img|picture|photo|jpe?g|png|file|content|bytes/i.test(name);
}

// Initial text of a field: zeros of the shape, with 1 for every dynamic size; empty above 256 values.
export function blank({ datatype, shape }) {
    const sizes = shape.map((size) => (size > 0 ? size : 1));
    const count = sizes.reduce((product, size) => product * size, 1);
    if (datatype === "BYTES") return "";
    const value = datatype === "BOOL" ? false : 0;
    return count > 256 ? "" : JSON.stringify(Array(count).fill(value));
}

export function fromJson(input, text) {
    let value;
    try {
        value = JSON.parse(text);
    } catch (error) {
        throw new Error(`not valid JSON: ${error.message}`);
    }
    const given = nesting(value);
    const data = Array.isArray(value) ? value.flat(Infinity) : [value];
    return { ...about(input, fit(input, given, data.length)), data };
}

// One element per line; a shape of one element takes the whole text.
export function fromText(input, text) {
    const fixed = input.shape.every((size) => Math.abs(size) === 1);
    const data = fixed ? [text] : text.split("\n");
    return { ...about(input, fit(input, [data.length], data.length)), data };
}

export function fromBytes(input, content) {
    const raw = new Uint8Array(4 + content.byteLength);
    new DataView(raw.buffer).setUint32(0, content.byteLength, true);
    raw.set(new Uint8Array(content), 4);
    return { ...about(input, fit(input, [], 1)), raw };
}

// The image is RGBA of a canvas. Floats are between 0 and 1, as most preprocessing begins.
export function fromPixels(input, { order, channels }, { width, height, data }) {
    const scale = input.datatype.startsWith("FP") ? 255 : 1;
    const size = SIZES[input.datatype];
    const raw = new Uint8Array(width * height * channels * size);
    const view = new DataView(raw.buffer);
    const [writer] = WRITERS[input.datatype];
    for (let pixel = 0; pixel < width * height; pixel += 1) {
        for (let channel = 0; channel < channels; channel += 1) {
            const value = channels === 1 ? grey(data, 4 * pixel) : data[4 * pixel + channel];
            const at = order === "CHW" ? channel * width * height + pixel : pixel * channels + channel;
            view[writer](at * size, value / scale, true);
        }
    }
    const given = order === "CHW" ? [channels, height, width] : [height, width, channels];
    return { ...about(input, fit(input, given, width * height * channels)), raw };
}

function grey(data, at) {
    return 0.299 * data[at] + 0.587 * data[at + 1] + 0.114 * data[at + 2];
}

function about({ name, datatype }, shape) {
    return { name, datatype, shape };
}

function nesting(value) {
    const shape = [];
    for (let each = value; Array.isArray(each); [each] = each) shape.push(each.length);
    return shape;
}

// The shape to send: as given, with ones before it; for flat values it is computed: [-1, 4] takes eight as (2, 4).
export function fit({ shape }, given, count) {
    const padded = [...Array(Math.max(0, shape.length - given.length)).fill(1), ...given];
    const product = padded.reduce((found, size) => found * size, 1);
    const matches = padded.length === shape.length && product === count;
    if (matches && padded.every((size, index) => shape[index] < 0 || shape[index] === size)) return padded;
    const fixed = shape.filter((size) => size >= 0).reduce((found, size) => found * size, 1);
    const free = shape.filter((size) => size < 0).length;
    if (given.length > 1 || !fixed || count % fixed || (!free && count !== fixed)) {
        const what = given.length > 1 ? `values of shape [${given}]` : `${count} values`;
        throw new Error(`${what} do not fit the shape [${shape}]`);
    }
    const sizes = [...Array(Math.max(0, free - 1)).fill(1), count / fixed];
    return shape.map((size) => (size >= 0 ? size : sizes.shift()));
}

// JSON alone, or a JSON header with the raw tensors behind it.
export function encode(tensors) {
    const inputs = tensors.map(({ raw, image, file, ...rest }) =>
        raw ? { ...rest, parameters: { binary_data_size: raw.byteLength } } : rest,
    );
    const document_ = new TextEncoder().encode(JSON.stringify({ inputs }));
    const raws = tensors.filter((each) => each.raw).map((each) => each.raw);
    if (!raws.length) return { body: document_, headers: { "Content-Type": "application/json" } };
    const headers = {
        "Content-Type": "application/octet-stream",
        "Inference-Header-Content-Length": String(document_.byteLength),
    };
    return { body: new Blob([document_, ...raws]), headers };
}
