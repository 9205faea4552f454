// What the page shows of the server, of each application and of limits; of upstreams see upstreams.js,
// of caches and pools caches.js, of held streams streams.js, over time charts.js.
//
// app.js makes the views and hands them each snapshot; elements.js draws. A view reads the snapshot
// and its history and has no other state.

import { figure, fullness, make, setClass, setText, table } from "./elements.js";
import { History, WINDOW_SECONDS } from "./history.js";
import { age, bytes, count, plural, rate, time } from "./numbers.js";

const WARNING_STATES = ["degraded", "starting", "draining", "probing", "disabled", "leaving", "recovering"];

export function stateTone(state) {
  if (["running", "ready", "up", "working"].includes(state)) return "good";
  if (["failing", "stopped", "down", "ejected", "out"].includes(state)) return "bad";
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
    fact("generation", String(now.generation));
    fact("up", age(now.uptime_seconds));
    fact("process", String(now.pid));
    fact("loops", String(now.threads));
    fact("log lines dropped", now.log_lines_dropped > 0 ? count(now.log_lines_dropped) : "");
    fact("warning", now.warnings.join("; "));
    const traffic = now.traffic;
    const peak = requests.draw(history.rates());
    requests.show(rate(history.rate(5)), "",
      `peak ${rate(peak)} · ${count(traffic.requests_total)} in all`);
    showTimes(times, history, 0, traffic.total_time);
    active.show(count(traffic.active), "",
      `${count(traffic.client_gone)} left early · ${count(traffic.too_slow)} too slow`);
    connections.show(count(now.connections.used), `of ${count(now.connections.max)}`,
      `${count(traffic.accepted)} accepted`);
    connections.fill(now.connections.used, now.connections.max,
      fullness(now.connections.used, now.connections.max));
    const failing = problems.rate(WINDOW_SECONDS);
    errors.show(rate(failing), "/ s",
      `${count(traffic.responses[4])} since start · ${count(traffic.responses[3])} 4xx`,
      failing > 0 ? "bad" : "");
    memory.show(bytes(now.resident_bytes), "",
      `${bytes(traffic.received_bytes)} in · ${bytes(traffic.sent_bytes)} out`);
  };
}

const WORKER_COLUMNS = [
  ["pid", true, (w) => (w.pid === null ? "–" : String(w.pid))],
  ["state", true, (w) => w.state, (w) => (["ready", "template"].includes(w.state) ? "good" : "warn")],
  ["for", false, (w) => age(w.since_seconds)],
  ["generation", false, (w) => String(w.generation)],
  ["age", false, (w) => (w.age_seconds === null ? "–" : age(w.age_seconds))],
  ["in progress", false, (w) => count(w.in_progress)],
  ["served", false, (w) => (w.requests === null ? "–" : count(w.requests))],
  ["memory", false, (w) => bytes(w.resident_bytes)],
  ["own and shared part", false,
    (w) => (w.proportional_bytes === null ? "–" : bytes(w.proportional_bytes))],
  ["worn by", true, (w) => w.worn ?? "", (w) => (w.worn === null ? "" : "warn")],
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
    act(button, result, `/apps/${encodeURIComponent(name)}/restart`, "Rolled to the new code."));
  const pace = make("p", "quiet");
  const text = make("pre");
  const blame = make("h3");
  const report = make("div", "report", blame, text);
  const figures = make("div", "figures");
  const requests = figure(figures, "Requests / s", "chart");
  const queue = figure(figures, "Waiting", "bar");
  const slots = figure(figures, "In progress", "bar");
  const waiting = figure(figures, "Waiting time");
  const working = figure(figures, "Time in application");
  const refused = figure(figures, "Refused, failed");
  const workers = make("table");
  const showWorkers = table(workers, WORKER_COLUMNS);
  const root = make("section", "card",
    make("div", "title", make("h2", "", name), state, about, button),
    result, pace, report, figures, make("div", "scroll", workers));
  const history = new History();

  function update(app, at) {
    history.add(at, app.counters.requests, [app.queue_time, app.app_time]);
    setText(state, app.state);
    setClass(state, `pill ${stateTone(app.state)}`);
    setText(about, [app.kind, app.interpreter, plural(app.threads, "thread", "threads"),
      `generation ${app.generation}`].filter(Boolean).join(" · "));
    const paceText = processesText(app);
    setText(pace, paceText);
    pace.hidden = paceText === "";
    report.hidden = !app.report;
    setText(blame, app.state === "ready"
      ? "The new code does not boot; the code before it serves on"
      : "The code does not boot");
    setText(text, app.report ?? "");
    const counters = app.counters;
    const peak = requests.draw(history.rates());
    requests.show(rate(history.rate(5)), "",
      `peak ${rate(peak)} · ${count(counters.requests)} in all`);
    queue.show(count(app.queue.waiting), `of ${count(app.queue.max)}`,
      app.queue.waiting > 0 ? `oldest ${time(app.queue.oldest_wait_seconds)}` : "nobody waits");
    queue.fill(app.queue.waiting, app.queue.max, fullness(app.queue.waiting, app.queue.max));
    slots.show(count(app.queue.in_progress), `of ${plural(app.queue.slots, "slot", "slots")}`,
      app.queue.slots === 0 ? "no worker is up" : "", app.queue.slots === 0 ? "bad" : "");
    // All slots at work is what they are for: no alarm.
    slots.fill(app.queue.in_progress, app.queue.slots);
    showTimes(waiting, history, 0, app.queue_time);
    showTimes(working, history, 1, app.app_time);
    // A crash is a worker's, not a request's: it is named but not counted.
    showTroubles(refused, [
      ["queue full", counters.queue_full], ["waited too long", counters.queue_timeout],
      ["left waiting", counters.queue_abandoned], ["failed", counters.failed],
      ["worker died", counters.worker_died], ["timed out", counters.timed_out],
    ], [
      ["crashed", counters.crashed], ["did not boot", counters.boots_failed],
      ["killed", Object.values(counters.killed).reduce((sum, number) => sum + number, 0)],
    ]);
    const processes = [...app.workers, ...app.templates];
    showWorkers(processes);
    workers.parentElement.hidden = processes.length === 0;
  }
  return { root, update };
}

/** How many threads of each process take requests, where the load decides it. */
function threadsText({ threads, threads_min: min, threads_max: max }) {
  return min < max ? `${threads} (${min} to ${max}) threads each` : "";
}

/** What it takes with all that it starts, where that has a bound, and how often it ran into it. */
function boundsText({ bounds, counters }) {
  const of = (used, max, show) => (used === null ? `at most ${show(max)}` : `${show(used)} of ${show(max)}`);
  return [
    bounds.tasks_max === null ? "" : `${of(bounds.tasks, bounds.tasks_max, count)} tasks`,
    bounds.memory_bytes_max === null ? ""
      : `${of(bounds.memory_bytes, bounds.memory_bytes_max, bytes)} of memory`,
    bounds.cpu_max === null ? "" : `at most ${bounds.cpu_max} processors`,
    counters.tasks_refused > 0 ? `${count(counters.tasks_refused)} tasks refused` : "",
    counters.out_of_memory_kills > 0
      ? `${count(counters.out_of_memory_kills)} killed for want of memory` : "",
  ].filter(Boolean).join(", ");
}

/** How many processes there are of how many, what decided it, and what is under way. */
function processesText(app) {
  const { min, ready, target, max } = app.processes;
  const range = min === max ? `${max}` : `${target} (${min} to ${max})`;
  const recycled = Object.entries(app.counters.recycled).filter(([, number]) => number > 0)
    .map(([reason, number]) => `${count(number)} for ${reason}`);
  return [
    `${ready} of ${range} processes ready`, threadsText(app), app.spawning,
    app.last_scaling ? `last change: ${app.last_scaling}` : "",
    app.last_failure ? `last failure: ${app.last_failure}` : "",
    boundsText(app),
    recycled.length > 0 ? `replaced: ${recycled.join(", ")}` : "",
    app.restarting ? "a restart is in progress" : "",
    app.restart_error ? "the last restart was given up" : "",
  ].filter(Boolean).join(" · ");
}

/** All that went wrong since the start, by kind; what is `beside` it is named but not counted. */
export function showTroubles(target, kinds, beside = []) {
  const named = [...kinds, ...beside].filter(([, number]) => number > 0);
  const total = kinds.reduce((sum, [, number]) => sum + number, 0);
  const text = named.map(([kind, number]) => `${count(number)} ${kind}`).join(", ");
  target.show(count(total), "", text, named.length > 0 ? "warn" : "");
}

const UNITS = {
  count, bytes, seconds: age, bytes_per_second: (number) => `${bytes(number)}/s`,
};

export const LIMIT_COLUMNS = [
  ["limit", true, (l) => l.name],
  ["in use", false, (l) => (l.used === null ? "" : UNITS[l.unit](l.used)),
    (l) => (l.used === null ? "" : fullness(l.used, l.max))],
  ["bound", false, (l) => UNITS[l.unit](l.max)],
  ["reached", false, (l) => (l.reached === null ? "" : UNITS.count(l.reached))],
];

export function showTimes(target, history, index, times, beside = "") {
  const bounds = times.buckets.le_seconds;
  const half = history.quantile(index, 0.5, bounds);
  const most = history.quantile(index, 0.99, bounds);
  if (half === null) target.show("–", "", "none in the last minute");
  else target.show(half, "p50", `p99 ${most}${beside}`);
}
