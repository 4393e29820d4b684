// Streamed responses: lines of JSON, and server-sent events, read by fetch, which can send the session's header.

import { request } from "./session.js";

async function* linesOf(answer) {
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    try {
        for (;;) {
            const { value, done } = await reader.read();
            if (done) break;
            const parts = (rest + value).split("\n");
            rest = parts.pop();
            yield* parts;
        }
        if (rest) yield rest;
    } finally {
        reader.cancel().catch(() => {});
    }
}

async function* lines(path, signal) {
    yield* linesOf(await request("GET", path, { signal }));
}

// Each line of a response is a JSON document.
export async function* documentsOf(answer) {
    for await (const line of linesOf(answer)) {
        if (line.trim()) yield JSON.parse(line);
    }
}

export async function* documents(path, signal) {
    yield* documentsOf(await request("GET", path, { signal }));
}

export async function* messages(path, signal) {
    let event = "message";
    let data = [];
    for await (const line of lines(path, signal)) {
        if (line.startsWith("event: ")) event = line.slice(7);
        else if (line.startsWith("data: ")) data.push(line.slice(6));
        else if (line === "") {
            if (data.length) yield { event, data: JSON.parse(data.join("\n")) };
            event = "message";
            data = [];
        } else yield { event: "beat", data: null };
    }
}
