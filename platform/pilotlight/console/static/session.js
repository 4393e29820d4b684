// The session, and all requests to the control API. The cookie is the browser's half of a session, `proof` is the
// page's: it is stored for this origin only, and worth nothing without the cookie.

const PROOF = "pilotlight.proof";
const API = "/console/api";

let whenLost = () => {};

export const session = { readOnly: false };

export class Refused extends Error {
    constructor(status, told) {
        super(told.hint ? `${told.error} (${told.hint})` : told.error);
        this.status = status;
    }
}

export function onLost(callback) {
    whenLost = callback;
}

// Logging out in one tab logs out of all of them.
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

// What the session may do. Controls that change something have the class `change`, which a read-only session hides.
export async function learn() {
    session.readOnly = (await ask("GET", "/session")).read_only;
    document.body.classList.toggle("readonly", session.readOnly);
}

export async function leave() {
    await ask("DELETE", "/session").catch(() => {});
    forget();
}

function forget() {
    localStorage.removeItem(PROOF);
    whenLost();
}

// Returns the response itself, for streams. A session that has ended leads back to the login.
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
        return { error: `the control process responded with ${answer.status}`, hint: "" };
    }
}
