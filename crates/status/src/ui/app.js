// The status page: receives the server's snapshot once a second and shows it.
//
// This file has the connection, the notice on top and the buttons. problems.js, views.js,
// upstreams.js, caches.js, certificates.js, jobs.js, rules.js, streams.js and charts.js show the
// rest.
//
// Invariants:
// - Every snapshot is shown as a whole; none depends on one before it.
// - When no snapshot arrives, the page says so.

import { cachesView, poolsView } from "./caches.js";
import { certificatesView } from "./certificates.js";
import { chartsView } from "./charts.js";
import { make, setClass, setText, table } from "./elements.js";
import { History } from "./history.js";
import { jobsView } from "./jobs.js";
import { age } from "./numbers.js";
import { problemsView } from "./problems.js";
import { compressionText, maintenanceText, pauseText, rulesView, topView } from "./rules.js";
import { hubView } from "./streams.js";
import { upstreamView } from "./upstreams.js";
import { appView, LIMIT_COLUMNS, serverView, stateTone } from "./views.js";

const STALE_MS = 5000;
const RETRY_MS = 2000;
/** The time between two samples of the server's history. */
const HISTORY_MS = 10000;

const byId = (id) => document.getElementById(id);

const page = {
  showServer: serverView(byId("figures"), byId("facts")),
  caches: cachesView(
    byId("caches"), byId("cache-figures"),
    { caches: byId("cache-rows"), routes: byId("cached-routes") }, byId("cache-reasons"),
  ),
  certificates: certificatesView(
    byId("certificates"), byId("tls-figures"), byId("certificate-rows"), byId("more-certificates"),
  ),
  pools: poolsView(byId("pools")),
  charts: chartsView(byId("charts")),
  problems: problemsView(byId("problems"), byId("icon")),
  showJobs: jobsView(byId("jobs"), byId("job-rows"), byId("job-lines")),
  hub: hubView(byId("hub"), byId("hub-figures"), byId("hub-cluster")),
  showTop: topView(byId("top"), byId("top-routes"), byId("top-clients")),
  showRules: rulesView(byId("rules"), byId("rule-rows")),
  showLimits: table(byId("limits"), LIMIT_COLUMNS),
  apps: new Map(),
  upstreams: new Map(),
  history: new History(),
  failures: new History(),
  pid: null,
  state: null,
  lastEventAt: null,
  isConnected: false,
  heldBack: [],
};

function show(now) {
  if (page.pid !== now.pid) {
    // Another process has its own counters.
    page.pid = now.pid;
    page.history = new History();
    page.failures = new History();
    page.caches.reset();
    page.certificates.reset();
    page.pools.reset();
    page.charts.update();
    page.hub.reset();
    for (const [views, id] of [[page.apps, "apps"], [page.upstreams, "upstreams"]]) {
      views.clear();
      byId(id).replaceChildren();
    }
  }
  page.state = now.state;
  setText(byId("version"), now.version);
  page.history.add(now.uptime_seconds, now.traffic.requests_total, [now.traffic.total_time]);
  page.failures.add(now.uptime_seconds, now.traffic.responses[4], []);
  page.showServer(now, page.history, page.failures);
  page.showJobs(now.jobs);
  page.hub.update(now.hub, now.uptime_seconds);
  showEach(now.apps, page.apps, byId("apps"), (name) => appView(name, act), now.uptime_seconds);
  showEach(now.upstreams, page.upstreams, byId("upstreams"), upstreamView, now.uptime_seconds);
  page.certificates.update(now.certificates, now.traffic, now.uptime_seconds);
  page.caches.update(now.caches, now.cached_routes, now.uptime_seconds);
  page.pools.update(now.pools, now.uptime_seconds);
  page.showTop(now.top);
  page.showRules(now.rules);
  const compression = compressionText(now.compression);
  byId("compression").hidden = compression === "";
  setText(byId("compression-text"), compression);
  page.showLimits(now.limits);
  byId("main").hidden = false;
  page.problems.update(now.problems);
  const reloadError = byId("reload-error");
  reloadError.hidden = !now.reload_error;
  setText(reloadError, now.reload_error ?? "");
  page.heldBack = [...now.maintenance.rules.map(maintenanceText), ...now.pauses.map(pauseText)];
}

/** Shows one view per element of `parts`, by name, in `parent`, and removes the others. */
function showEach(parts, views, parent, makeView, at) {
  const names = new Set(parts.map((part) => part.name));
  for (const [name, view] of views) {
    if (!names.has(name)) {
      view.root.remove();
      views.delete(name);
    }
  }
  for (const part of parts) {
    if (!views.has(part.name)) {
      const view = makeView(part.name);
      views.set(part.name, view);
      parent.append(view.root);
    }
    views.get(part.name).update(part, at);
  }
}

/** Shows one notice: connection lost, shutdown, or pauses and maintenance, in that order. */
function showNotice() {
  const silent = page.lastEventAt === null ? 0 : Date.now() - page.lastEventAt;
  const isLost = !page.isConnected || silent > STALE_MS;
  document.body.classList.toggle("lost", isLost && page.lastEventAt !== null);
  const pill = byId("state");
  setText(pill, isLost ? (page.lastEventAt === null ? "connecting" : "no connection") : page.state);
  setClass(pill, `pill ${isLost ? "bad" : stateTone(page.state)}`);
  setText(byId("age"), isLost || page.lastEventAt === null ? "" : "live");
  byId("reload").disabled = isLost || byId("reload").dataset.busy === "yes";
  const notice = byId("notice");
  const [text, tone] = noticeText(isLost, silent);
  notice.hidden = text === "";
  setText(notice, text);
  setClass(notice, tone);
}

function noticeText(isLost, silent) {
  if (isLost && page.lastEventAt === null) {
    return page.isConnected ? ["", ""] : ["Waiting for the server …", ""];
  }
  if (isLost) {
    const ended = page.state === "draining"
      ? "The server was shutting down and closed the connection"
      : "The connection to the server was lost";
    return [`${ended}. The data is ${age(silent / 1000)} old. Reconnecting …`, "bad"];
  }
  if (page.state === "draining") {
    return ["The server is shutting down. Requests in progress are finished.", "warn"];
  }
  return page.heldBack.length > 0 ? [page.heldBack.join("\n"), "warn"] : ["", ""];
}

/** Sends one change. Asks for the token once if the server requires one. */
async function post(path) {
  const send = () => fetch(path, {
    method: "POST",
    headers: page.token ? { Authorization: `Bearer ${page.token}` } : {},
  });
  const response = await send();
  if (response.status !== 401) return response;
  page.token = window.prompt("Token (the value of server.admin_token)")?.trim() ?? "";
  return page.token === "" ? response : send();
}

/** Sends one change and shows its result below the button. */
async function act(button, result, path, done) {
  button.dataset.busy = "yes";
  button.disabled = true;
  result.hidden = true;
  let outcome;
  try {
    const response = await post(path);
    outcome = await response.json().catch(() => ({ ok: false, error: `status ${response.status}` }));
  } catch {
    outcome = { ok: false, error: "Cannot reach the server." };
  }
  delete button.dataset.busy;
  button.disabled = false;
  result.hidden = false;
  setClass(result, `result ${outcome.ok ? "good" : "bad"}`);
  result.replaceChildren(outcome.ok ? outcome.message || done : make("pre", "", outcome.error));
}

function connect() {
  const events = new EventSource("/events");
  events.addEventListener("open", () => {
    page.isConnected = true;
    showNotice();
  });
  events.addEventListener("status", (event) => {
    page.lastEventAt = Date.now();
    page.isConnected = true;
    show(JSON.parse(event.data));
    showNotice();
  });
  events.addEventListener("error", () => {
    page.isConnected = false;
    showNotice();
    // A browser does not retry after a refusal (too many open event streams).
    if (events.readyState === EventSource.CLOSED) setTimeout(connect, RETRY_MS);
  });
}

byId("reload").addEventListener("click", () =>
  act(byId("reload"), byId("reload-result"), "/reload", "Configuration reloaded."));
setInterval(showNotice, 1000);
setInterval(page.charts.update, HISTORY_MS);
connect();
