// Who is logged in, and every question to the control API. The cookie is the browser's half of a session, `proof` is
// the page's: kept for this origin alone, and worth nothing without the cookie.

const PROOF = "pilotlight.proof";
const API = "/console/api";

let whenLost = () => {};

export class Refused extends Error {
    constructor(status, told) {
        super(told.hint ? `${told.error} (${told.hint})` : told.error);
        this.status = status;
    }
}

export function onLost(callback) {
    whenLost = callback;
}

// Who logs out in one tab is out in all of them.
window.addEventListener("storage", (event) => {
    if (event.key === PROOF && event.newValue === null) whenLost();
});

export function entered() {
    return localStorage.getItem(PROOF) !== null;
}

export async function enter(token) {
    const body = JSON.stringify({ token });
    const answer = await fetch(`${API}/login`, {
        method: "POST",
        headers: { "Content-Type": "application/json" },
        body,
    });
    const told = await readable(answer);
    if (!answer.ok) throw new Refused(answer.status, told);
    localStorage.setItem(PROOF, told.proof);
    return told;
}

export async function leave() {
    await ask("DELETE", "/session").catch(() => {});
    forget();
}

function forget() {
    localStorage.removeItem(PROOF);
    whenLost();
}

// The reply itself, for streams; a session that is over leads back to the login, wherever it is noticed.
export async function request(method, path, { body, headers, signal } = {}) {
    const shown = { "X-Pilotlight-Console": localStorage.getItem(PROOF) ?? "", ...headers };
    const answer = await fetch(`${API}${path}`, { method, headers: shown, body, signal });
    if (answer.ok) return answer;
    const told = await readable(answer);
    if (answer.status === 401) forget();
    throw new Refused(answer.status, told);
}

export async function ask(method, path, value) {
    const body = value === undefined ? undefined : JSON.stringify(value);
    const headers = body === undefined ? {} : { "Content-Type": "application/json" };
    return (await request(method, path, { body, headers })).json();
}

export function pathOf(id) {
    const [namespace, name] = id.split("/").map(encodeURIComponent);
    return `/v1/namespaces/${namespace}/services/${name}`;
}

async function readable(answer) {
    try {
        return await answer.json();
    } catch {
        return { error: `the control process answered ${answer.status}`, hint: "" };
    }
}
