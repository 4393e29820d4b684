// What the feed has told: services by id, the recent past of their figures, events. Views listen to it.

export const WINDOW_S = 300;
const KEPT_POINTS = 600;
const KEPT_EVENTS = 500;

export const services = new Map();
export const past = new Map();
export const events = [];
export const canaries = new Map();
export const link = { live: false, heard: false, ahead: 0 };

const listeners = new Set();

export function listen(callback) {
    listeners.add(callback);
    return () => listeners.delete(callback);
}

export function changed(what) {
    for (const callback of [...listeners]) callback(what);
}

// Seconds on the control process's clock, which the points are told by.
export function now() {
    return Date.now() / 1000 + link.ahead;
}

export function forget() {
    for (const kept of [services, past, canaries]) kept.clear();
    events.length = 0;
    link.live = link.heard = false;
}

export function takeServices(told) {
    link.ahead = told.at - Date.now() / 1000;
    if (told.past) {
        services.clear();
        past.clear();
        for (const [id, points] of Object.entries(told.past)) past.set(id, points);
    }
    for (const id of told.gone) {
        services.delete(id);
        past.delete(id);
    }
    for (const service of told.changed) {
        services.set(service.id, service);
        remember(service, told.at);
    }
    link.heard = true;
    changed("services");
}

function remember(service, at) {
    const points = past.get(service.id) ?? [];
    const latest = points.at(-1);
    const fresh = pointOf(service, at);
    if (!latest || fresh.slice(1).some((value, index) => value !== latest[index + 1])) points.push(fresh);
    while (points.length > KEPT_POINTS || (points.length > 1 && points[1][0] < at - WINDOW_S)) points.shift();
    past.set(service.id, points);
}

function pointOf(service, at) {
    const latencies = service.revisions.map((each) => each.p99_ms).filter((value) => value !== null);
    const rate = service.revisions.reduce((sum, each) => sum + each.per_second, 0);
    const ready = service.revisions.reduce((sum, each) => sum + each.ready, 0);
    return [at, Math.round(rate * 100) / 100, latencies.length ? Math.max(...latencies) : null, ready];
}

export function takeEvents(told) {
    const known = events.at(-1)?.number ?? 0;
    events.push(...told.filter((each) => each.number > known));
    events.splice(0, Math.max(0, events.length - KEPT_EVENTS));
    changed("events");
}

export function takeCanary(id, told) {
    canaries.set(id, told);
    changed("canary");
}
