// Figures and names as people read them. Pure.

export const NOTHING = "–";

export function milliseconds(value) {
    if (value === null || value === undefined) return NOTHING;
    if (value === 0) return "0 ms";
    if (value >= 10000) return `${(value / 1000).toFixed(1)} s`;
    if (value >= 1000) return `${(value / 1000).toFixed(2)} s`;
    return value < 10 ? `${value.toFixed(1)} ms` : `${value.toFixed(0)} ms`;
}

export function percent(value) {
    if (value === null || value === undefined) return NOTHING;
    return value > 0 && value < 1 ? `${value.toFixed(2)} %` : `${Number(value.toFixed(1))} %`;
}

export function rate(value) {
    if (!value) return "0";
    return value < 10 ? value.toFixed(1) : value.toFixed(0);
}

export function clock(at) {
    const date = new Date(at);
    return Number.isNaN(date.getTime()) ? NOTHING : date.toLocaleTimeString([], { hour12: false });
}

export function dateAndClock(at) {
    const date = new Date(at);
    if (Number.isNaN(date.getTime())) return NOTHING;
    return `${date.toISOString().slice(0, 10)} ${date.toLocaleTimeString([], { hour12: false })}`;
}

export function hrefOf(id, tab = "", revision = "") {
    return `#/services/${[...id.split("/"), tab, revision].filter(Boolean).map(encodeURIComponent).join("/")}`;
}

// Without the service's name, which the page shows already.
export function short(service, revision) {
    return revision.startsWith(`${service.name}-`) ? revision.slice(service.name.length + 1) : revision;
}

export function total(service, field) {
    return service.revisions.reduce((sum, each) => sum + (each[field] ?? 0), 0);
}

export function worst(service, field) {
    const known = service.revisions.map((each) => each[field]).filter((value) => value !== null && value !== undefined);
    return known.length ? Math.max(...known) : null;
}

export function replicas(ready, desired, starting) {
    return `${ready}/${desired}${starting ? ` +${starting}` : ""}`;
}

export function bytes(count) {
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let power = 0;
    while (count >= 1024 && power < units.length - 1) {
        count /= 1024;
        power += 1;
    }
    return `${power ? count.toFixed(1) : count} ${units[power]}`;
}
