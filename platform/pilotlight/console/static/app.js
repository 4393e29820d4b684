// The page: the login, or a frame around the view that the address names.
//
//   #/                                 all services
//   #/deploy                           the editor for a new service
//   #/services/NAMESPACE/NAME/TAB      one service; logs/REVISION: the log of a revision
//   #/services/NAMESPACE/NAME/edit     the editor for its manifest
//   #/dashboards/NAME                  panels of a dashboard

import { dashboardsPage } from "./dashboards.js";
import { deployPage } from "./deploy.js";
import { button, el, fill, say } from "./dom.js";
import * as feed from "./feed.js";
import { clock } from "./format.js";
import { login } from "./login.js";
import { overview } from "./overview.js";
import { servicePage } from "./service.js";
import { enter, entered, learn, leave, onLost, session } from "./session.js";
import { forget, link, listen } from "./state.js";
import { notFound } from "./states.js";

const LOST_MS = 3000; // a shorter interruption is no news
const READ_ONLY = "This session is read-only: log in with the API token to deploy.";

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
    const banner = el("div", { class: "banner", role: "alert", hidden: true });
    let timer = 0;
    const lose = (at) => {
        fill(
            banner,
            el("strong", {}, "The platform does not respond"),
            el("span", {}, ` since ${clock(at)}. If it is stopped, start it: `),
            el("code", {}, "platformctl up"),
        );
        banner.hidden = false;
        main.inert = true;
    };
    listen((what) => {
        if (what !== "link") return;
        mark.className = link.live ? "link live" : "link lost";
        say(mark.lastChild, link.live ? "live" : "reconnecting");
        clearTimeout(timer);
        if (!link.live) timer = setTimeout(lose, LOST_MS, Date.now());
        main.inert = false;
        banner.hidden = true;
    });
    const brand = el(
        "a",
        { class: "brand", href: "#/" },
        el("img", { src: "/console/static/flame.svg", alt: "", width: 20, height: 20 }),
        "Pilotlight",
    );
    const dashboards = el("a", { href: "#/dashboards" }, "Dashboards");
    const mode = el("span", { class: "chip watch", title: "This session changes nothing" }, "read-only");
    fill(
        app,
        el("header", { class: "top" }, brand, dashboards, mode, mark, button("Log out", logOut, { class: "quiet" })),
        banner,
        main,
    );
}

function show() {
    if (!entered()) return;
    if (location.hash === "#main") return;
    if (main === null) frame();
    const [, area, namespace, name, tab] = location.hash.split("/").map(decodeURIComponent);
    const id = area === "services" && namespace && name ? `${namespace}/${name}` : "";
    const place = area === "dashboards" ? area : id && tab !== "edit" ? id : location.hash;
    if (view?.place === place && view.turn) {
        view.turn(area === "dashboards" ? namespace || "" : tab || "overview");
        return;
    }
    const moved = view !== null;
    view?.leave();
    feed.start(id);
    view = viewOf(area, namespace, id, tab);
    view.place = place;
    fill(main, view.node);
    document.title = id ? `${id} · Pilotlight` : "Pilotlight";
    if (moved) main.focus({ preventScroll: true }); // the focused element has left with the previous view
    window.scrollTo(0, 0);
}

function viewOf(area, namespace, id, tab) {
    if (session.readOnly && (area === "deploy" || (id && tab === "edit")))
        return { node: notFound(id ? `Edit ${id}` : "Deploy a service", READ_ONLY), leave() {} };
    if (id) return tab === "edit" ? deployPage(id) : servicePage(id, tab || "overview");
    if (area === "dashboards") return dashboardsPage(namespace || "");
    if (area === "deploy") return deployPage();
    if (!area) return overview();
    return { node: notFound("Page not found", `The console has no page ${location.hash}.`), leave() {} };
}

function showLogin(told = "") {
    view?.leave();
    view = main = null;
    feed.stop();
    forget();
    fill(app, login(begin, told));
    app.querySelector("#token").focus();
}

// The feed first: it would reconnect without a session and be refused.
function logOut() {
    feed.stop();
    return leave();
}

async function begin(token) {
    await enter(token);
    await learn();
    show();
    main.focus();
}

// A link of `platformctl console` has a ticket after the #, which no server sees; it is removed from the address. What
// follows it is the page to open: #token=TICKET/dashboards.
async function follow() {
    const [, ticket, page] = /^#token=([^/]+)(\/.*)?$/.exec(location.hash) ?? [];
    if (ticket) history.replaceState(null, "", `${location.pathname}#${page ?? "/"}`);
    if (!ticket) return show();
    try {
        await begin(decodeURIComponent(ticket));
    } catch (error) {
        if (entered()) show();
        else showLogin(error.message);
    }
}

onLost(() => showLogin());
window.addEventListener("hashchange", follow);
if (!entered()) showLogin();
else await learn().catch(() => {}); // a lost connection shows in the frame; a session that has ended leads to the login
follow();
