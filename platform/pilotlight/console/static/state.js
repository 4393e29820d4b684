// State from the feed: services by id, events. Views listen to it.

const KEPT_EVENTS = 500;

export const services = new Map();
export const events = [];
export const canaries = new Map();
export const link = { live: false, heard: false };

const listeners = new Set();

export function listen(callback) {
    listeners.add(callback);
    return () => listeners.delete(callback);
}

export function changed(what) {
    for (const callback of [...listeners]) callback(what);
}

export function forget() {
    for (const kept of [services, canaries]) kept.clear();
    events.length = 0;
    link.live = link.heard = false;
}

export function takeServices(told) {
    if (told.first) services.clear();
    for (const id of told.gone) services.delete(id);
    for (const service of told.changed) services.set(service.id, service);
    link.heard = true;
    changed("services");
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
