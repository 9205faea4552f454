// Views of the server, of each application and of limits. Upstreams are in upstreams.js, caches and
// thread pools in caches.js, certificates in certificates.js, streams in streams.js, charts in
// charts.js.
//
// app.js makes the views and passes each snapshot to them; elements.js draws. A view has no state
// but its history.

import { figure, fullness, make, setClass, setText, table } from "./elements.js";
import { History, WINDOW_SECONDS } from "./history.js";
import { age, bytes, count, plural, rate, time } from "./numbers.js";

const WARNING_STATES = ["degraded", "starting", "draining", "trial", "disabled", "leaving", "recovering"];

export function stateTone(state) {
  if (["running", "ready", "up", "working"].includes(state)) return "good";
  if (["failing", "stopped", "down", "ejected", "out_of_service"].includes(state)) return "bad";
  return WARNING_STATES.includes(state) ? "warn" : "";
}

export function serverView(parent, factList) {
  const requests = figure(parent, "Requests / s", "chart");
  const times = figure(parent, "Total time");
  const active = figure(parent, "In progress");
  const connections = figure(parent, "Connections", "bar");
  const errors = figure(parent, "Server errors (5xx)");
  const memory = figure(parent, "Memory");
  const facts = new Map();
  const fact = (name, text) => {
    if (!facts.has(name)) {
      const value = make("dd");
      facts.set(name, value);
      factList.append(make("div", "", make("dt", "", name), value));
    }
    setText(facts.get(name), text);
    facts.get(name).parentElement.hidden = text === "";
  };
  return (now, history, problems) => {
    fact("listening on", now.listeners.join(", "));
    fact("configuration", now.config ?? "");
    fact("configuration generation", String(now.config_generation));
    fact("uptime", age(now.uptime_seconds));
    fact("process", String(now.pid));
    fact("event loops", String(now.event_loops));
    fact("log lines dropped", now.log_lines_dropped > 0 ? count(now.log_lines_dropped) : "");
    fact("warning", now.warnings.join("; "));
    const traffic = now.traffic;
    const peak = requests.draw(history.rates());
    requests.show(rate(history.rate(5)), "",
      `peak ${rate(peak)} · ${count(traffic.requests_total)} total`);
    showTimes(times, history, 0, traffic.total_time);
    active.show(count(traffic.active), "",
      `${count(traffic.client_disconnects)} disconnected · ${count(traffic.slow_clients)} too slow`);
    connections.show(count(now.connections.used), `of ${count(now.connections.max)}`,
      `${count(traffic.accepted)} accepted`);
    connections.fill(now.connections.used, now.connections.max,
      fullness(now.connections.used, now.connections.max));
    const failing = problems.rate(WINDOW_SECONDS);
    errors.show(rate(failing), "/ s",
      `${count(traffic.responses[4])} since start · ${count(traffic.responses[3])} 4xx`,
      failing > 0 ? "bad" : "");
    memory.show(bytes((now.resident_bytes ?? 0) + now.worker_bytes), "",
      `${bytes(now.resident_bytes)} server · ${bytes(now.worker_bytes)} workers`);
    fact("bodies", `${bytes(traffic.received_bytes)} in, ${bytes(traffic.sent_bytes)} out`);
  };
}

const WORKER_COLUMNS = [
  ["pid", true, (w) => (w.pid === null ? "–" : String(w.pid))],
  ["state", true, (w) => w.state, (w) => (["ready", "template"].includes(w.state) ? "good" : "warn")],
  ["in state for", false, (w) => age(w.time_in_state_seconds)],
  ["generation", false, (w) => String(w.generation)],
  ["age", false, (w) => (w.age_seconds === null ? "–" : age(w.age_seconds))],
  ["in progress", false, (w) => count(w.active)],
  ["served", false, (w) => (w.requests === null ? "–" : count(w.requests))],
  ["memory", false, (w) => bytes(w.resident_bytes)],
  ["Shared memory", false,
    (w) => (w.proportional_bytes === null ? "–" : bytes(w.proportional_bytes))],
  ["Replaced because", true, (w) => w.replace_reason ?? "",
    (w) => (w.replace_reason === null ? "" : "warn")],
  ["restarts", false, (w) => count(w.restarts), (w) => (w.restarts > 0 ? "warn" : "")],
];

export function appView(name, act) {
  const state = make("span");
  const about = make("span", "quiet");
  const button = make("button", "", "Restart");
  button.type = "button";
  const result = make("section", "result");
  result.hidden = true;
  result.setAttribute("aria-live", "polite");
  button.addEventListener("click", () =>
    act(button, result, `/apps/${encodeURIComponent(name)}/restart`, "Restarted with the new code."));
  const summary = make("p", "quiet");
  const text = make("pre");
  const reportTitle = make("h3");
  const report = make("div", "report", reportTitle, text);
  const figures = make("div", "figures");
  const requests = figure(figures, "Requests / s", "chart");
  const queue = figure(figures, "Queued", "bar");
  const slots = figure(figures, "In progress", "bar");
  const waiting = figure(figures, "Queue time");
  const working = figure(figures, "Time to response header");
  const errors = figure(figures, "Errors");
  const memory = figure(figures, "Memory of workers");
  const workers = make("table");
  const showWorkers = table(workers, WORKER_COLUMNS);
  const root = make("section", "card",
    make("div", "title", make("h2", "", name), state, about, button),
    result, summary, report, figures, make("div", "scroll", workers));
  const history = new History();

  function update(app, at) {
    history.add(at, app.counters.requests, [app.queue_time, app.header_time]);
    setText(state, app.state);
    setClass(state, `pill ${stateTone(app.state)}`);
    setText(about, [app.kind, app.interpreter, plural(app.threads, "thread", "threads"),
      `generation ${app.generation}`].filter(Boolean).join(" · "));
    const summaryText = processesText(app);
    setText(summary, summaryText);
    summary.hidden = summaryText === "";
    report.hidden = !app.boot_report;
    setText(reportTitle, app.state === "ready"
      ? "The new code failed to boot. The previous code continues to serve requests."
      : "The code failed to boot.");
    setText(text, app.boot_report ?? "");
    const counters = app.counters;
    const peak = requests.draw(history.rates());
    requests.show(rate(history.rate(5)), "",
      `peak ${rate(peak)} · ${count(counters.requests)} total`);
    queue.show(count(app.queue.length), `of ${count(app.queue.max)}`,
      app.queue.length > 0 ? `oldest ${time(app.queue.oldest_wait_seconds)}` : "queue empty");
    queue.fill(app.queue.length, app.queue.max, fullness(app.queue.length, app.queue.max));
    slots.show(count(app.queue.active), `of ${plural(app.queue.slots, "slot", "slots")}`,
      app.queue.slots === 0 ? "no worker is up" : "", app.queue.slots === 0 ? "bad" : "");
    // Using all slots is normal: no alarm.
    slots.fill(app.queue.active, app.queue.slots);
    showTimes(waiting, history, 0, app.queue_time);
    showTimes(working, history, 1, app.header_time);
    // Crashes count workers, not requests: they are shown and not added.
    showErrors(errors, [
      ["queue full", counters.queue_full], ["queue timeout", counters.queue_timeouts],
      ["disconnected in queue", counters.queue_abandoned], ["failed", counters.failed_requests],
      ["worker died", counters.worker_deaths], ["timed out", counters.timed_out_requests],
    ], [
      ["workers crashed", counters.crashed_workers], ["failed to boot", counters.failed_boots],
      ["workers killed", Object.values(counters.killed_workers).reduce((sum, number) => sum + number, 0)],
    ]);
    const processes = [...app.workers, ...app.templates];
    const sizes = processes.map((w) => w.proportional_bytes ?? w.resident_bytes ?? 0);
    memory.show(bytes(sizes.reduce((sum, size) => sum + size, 0)), "",
      sizes.length > 0 ? `largest ${bytes(Math.max(...sizes))}` : "no process");
    showWorkers(processes);
    workers.parentElement.hidden = processes.length === 0;
  }
  return { root, update };
}

/** The number of threads per process, where it scales with the load. */
function threadsText({ threads, min_threads: min, max_threads: max }) {
  return min < max ? `${threads} (${min} to ${max}) threads each` : "";
}

/** Use of the limits on all processes of the application, and how often they were reached. */
function boundsText({ bounds, counters }) {
  const of = (used, max, show) => (used === null ? `at most ${show(max)}` : `${show(used)} of ${show(max)}`);
  return [
    bounds.max_tasks === null ? "" : `${of(bounds.tasks, bounds.max_tasks, count)} tasks`,
    bounds.max_memory_bytes === null ? ""
      : `${of(bounds.memory_bytes, bounds.max_memory_bytes, bytes)} of memory`,
    bounds.max_cpu === null ? "" : `at most ${bounds.max_cpu} processors`,
    counters.tasks_refused > 0 ? `${count(counters.tasks_refused)} tasks refused` : "",
    counters.out_of_memory_kills > 0
      ? `${count(counters.out_of_memory_kills)} killed by the out-of-memory killer` : "",
  ].filter(Boolean).join(", ");
}

/** The number of processes, the last changes and what is in progress. */
function processesText(app) {
  const { min, ready, target, max } = app.processes;
  const range = min === max ? `${max}` : `${target} (${min} to ${max})`;
  const recycled = Object.entries(app.counters.recycled_workers).filter(([, number]) => number > 0)
    .map(([reason, number]) => `${count(number)} for ${reason}`);
  return [
    `${ready} of ${range} processes ready`, threadsText(app), app.start_method,
    app.last_scaling ? `last change: ${app.last_scaling}` : "",
    app.last_failure ? `last failure: ${app.last_failure}` : "",
    boundsText(app),
    recycled.length > 0 ? `replaced: ${recycled.join(", ")}` : "",
    app.is_restarting ? "restart in progress" : "",
    app.restart_error ? "last restart aborted" : "",
  ].filter(Boolean).join(" · ");
}

/** Shows the errors since the start, by kind. The total leaves out those of `alsoShown`. */
export function showErrors(target, counted, alsoShown = []) {
  const named = [...counted, ...alsoShown].filter(([, number]) => number > 0);
  const total = counted.reduce((sum, [, number]) => sum + number, 0);
  const text = named.map(([kind, number]) => `${count(number)} ${kind}`).join(", ");
  target.show(count(total), "", text, named.length > 0 ? "warn" : "");
}

const UNITS = {
  count, bytes, seconds: age, bytes_per_second: (number) => `${bytes(number)}/s`,
};

export const LIMIT_COLUMNS = [
  ["name", true, (l) => l.name],
  ["in use", false, (l) => (l.used === null ? "" : UNITS[l.unit](l.used)),
    (l) => (l.used === null ? "" : fullness(l.used, l.max))],
  ["limit", false, (l) => UNITS[l.unit](l.max)],
  ["times reached", false, (l) => (l.reached === null ? "" : UNITS.count(l.reached))],
];

export function showTimes(target, history, index, times, suffix = "") {
  const bounds = times.buckets.le_seconds;
  const quantile = (q) => history.quantile(index, q, bounds);
  const half = quantile(0.5);
  if (half === null) return target.show("–", "", "none in the last minute");
  const rest = [["p90", 0.9], ["p95", 0.95], ["p99", 0.99], ["p99.9", 0.999]];
  return target.show(half, "p50",
    rest.map(([name, q]) => `${name} ${quantile(q)}`).join(" · ") + suffix);
}
