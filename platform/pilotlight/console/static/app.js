// The page put together: a session or the login, a frame around one view, and the view that the address names.
//
//   #/                                 all services
//   #/services/NAMESPACE/NAME/TAB      one service
//   #/dashboards/NAME                  panels of a dashboard

import { dashboardsPage } from "./dashboards.js";
import { button, el, fill, say } from "./dom.js";
import * as feed from "./feed.js";
import { login } from "./login.js";
import { overview } from "./overview.js";
import { servicePage } from "./service.js";
import { enter, entered, leave, onLost } from "./session.js";
import { forget, link, listen } from "./state.js";

const app = document.getElementById("app");
let view = null;
let main = null;

function frame() {
    const mark = el(
        "span",
        { class: "link", role: "status" },
        el("span", { class: "dot" }),
        el("span", {}, "connecting"),
    );
    main = el("main", { id: "main", tabindex: "-1" });
    listen((what) => {
        if (what !== "link") return;
        mark.className = link.live ? "link live" : "link lost";
        say(mark.lastChild, link.live ? "live" : "reconnecting");
    });
    const brand = el(
        "a",
        { class: "brand", href: "#/" },
        el("img", { src: "/console/static/flame.svg", alt: "", width: 20, height: 20 }),
        "Pilotlight",
    );
    const dashboards = el("a", { href: "#/dashboards" }, "Dashboards");
    fill(
        app,
        el("header", { class: "top" }, brand, dashboards, mark, button("Log out", logOut, { class: "quiet" })),
        main,
    );
}

function show() {
    if (!entered()) return;
    if (location.hash === "#main") return;
    if (main === null) frame();
    const [, area, namespace, name, tab] = location.hash.split("/").map(decodeURIComponent);
    const id = area === "services" && namespace && name ? `${namespace}/${name}` : "";
    const panels = area === "dashboards";
    if (view?.turn && view.id === id && view.panels === panels) {
        view.turn(panels ? namespace || "" : tab || "overview");
        return;
    }
    const moved = view !== null;
    view?.leave();
    feed.start(id);
    view = panels ? dashboardsPage(namespace || "") : id ? servicePage(id, tab || "overview") : overview();
    view.id = id;
    view.panels = panels;
    fill(main, view.node);
    document.title = id ? `${id} · Pilotlight` : "Pilotlight";
    if (moved) main.focus({ preventScroll: true }); // what had the focus is gone with the view before
    window.scrollTo(0, 0);
}

function askForToken(told = "") {
    view?.leave();
    view = main = null;
    feed.stop();
    forget();
    fill(app, login(begin, told));
    app.querySelector("#token").focus();
}

// The feed first: it would ask again when its session is over, and be refused.
function logOut() {
    feed.stop();
    return leave();
}

async function begin(token) {
    await enter(token);
    show();
    main.focus();
}

// A link of `platformctl console` carries a ticket behind the #, where no server sees it; it leaves the address. What
// follows it is the page to open: #token=TICKET/dashboards.
async function follow() {
    const [, ticket, page] = /^#token=([^/]+)(\/.*)?$/.exec(location.hash) ?? [];
    if (ticket) history.replaceState(null, "", `${location.pathname}#${page ?? "/"}`);
    if (!ticket) return show();
    try {
        await begin(decodeURIComponent(ticket));
    } catch (error) {
        if (entered()) show();
        else askForToken(error.message);
    }
}

onLost(() => askForToken());
window.addEventListener("hashchange", follow);
if (!entered()) askForToken();
follow();
