// View of an upstream: its queue, its times, and a row for each server.
//
// app.js makes the views and passes each snapshot to them; elements.js draws.

import { figure, fullness, make, setClass, setText, table } from "./elements.js";
import { History } from "./history.js";
import { count, plural, rate, time } from "./numbers.js";
import { showTimes, showErrors, stateTone } from "./views.js";

const sum = (rows, value) => rows.reduce((total, row) => total + value(row), 0);

/** Whether a server that should accept requests does not. */
const isUnavailable = (server) => ["ejected", "trial", "down"].includes(server.state);

/** The state of an upstream in one word. */
export function upstreamState(upstream) {
  if (!upstream.up) return "down";
  return upstream.servers.some(isUnavailable) ? "degraded" : "up";
}

const SERVER_COLUMNS = [
  ["server", true, (s) => s.name + (s.backup ? " (backup)" : "")],
  ["state", true, (s) => s.state, (s) => stateTone(s.state)],
  // Using all slots is normal: no alarm.
  ["in progress", false, (s) => count(s.active) + (s.max_active === null ? "" : ` of ${count(s.max_active)}`)],
  ["requests / s", false, (s) => rate(s.rate)],
  ["requests", false, (s) => count(s.requests)],
  ["failed", false, (s) => count(s.failures), (s) => (s.failures > 0 ? "warn" : "")],
  ["timed out", false, (s) => count(s.timeouts), (s) => (s.timeouts > 0 ? "warn" : "")],
  ["connections", false, (s) => count(s.connections_open)],
  ["idle", false, (s) => count(s.connections_idle)],
  ["connects", false, (s) => count(s.connects)],
  ["reused", false, (s) => count(s.connection_reuses)],
  ["weight", false, (s) => count(s.weight)],
];

export function upstreamView(name) {
  const state = make("span");
  const about = make("span", "quiet");
  const figures = make("div", "figures");
  const requests = figure(figures, "Requests / s", "chart");
  const queue = figure(figures, "Queued", "bar");
  const active = figure(figures, "In progress", "bar");
  const waiting = figure(figures, "Queue time");
  const answering = figure(figures, "Time to response header");
  const problems = figure(figures, "Errors and retries");
  const servers = make("table");
  const showServers = table(servers, SERVER_COLUMNS);
  const errors = make("pre");
  const root = make("section", "card",
    make("div", "title", make("h2", "", name), state, about),
    figures, make("div", "scroll", servers), errors);
  const history = new History();
  const rates = new Rates();

  function update(upstream, at) {
    const { counters } = upstream;
    history.add(at, counters.requests,
      [upstream.queue_time, upstream.header_time, upstream.connect_time]);
    const word = upstreamState(upstream);
    setText(state, word);
    setClass(state, `pill ${stateTone(word)}`);
    const unavailable = upstream.servers.filter(isUnavailable);
    const unavailableText = unavailable.length > 0 ? `, ${count(unavailable.length)} not available` : "";
    setText(about,
      `${upstream.protocol} · ${plural(upstream.servers.length, "server", "servers")}${unavailableText}`);
    const peak = requests.draw(history.rates());
    requests.show(rate(history.rate(5)), "",
      `peak ${rate(peak)} · ${count(counters.requests)} total`);
    const { length, max, oldest_wait_seconds: oldest } = upstream.queue;
    queue.show(count(length), `of ${count(max)}`,
      length > 0 ? `oldest ${time(oldest)}` : "queue empty");
    queue.fill(length, max, fullness(length, max));
    showActive(active, upstream);
    showTimes(waiting, history, 0, upstream.queue_time);
    const connecting = history.quantile(2, 0.99, upstream.connect_time.buckets.le_seconds);
    showTimes(answering, history, 1, upstream.header_time,
      connecting === null ? "" : ` · connect p99 ${connecting}`);
    showErrors(problems, [
      ["queue full", counters.queue_full], ["queue timeout", counters.queue_timeouts],
      ["no server up", counters.unavailable], ["disconnected in queue", counters.queue_abandoned],
      ["retried", counters.retries], ["over retry budget", counters.retries_over_budget],
    ]);
    showServers(rates.of(upstream.servers, at));
    servers.parentElement.hidden = upstream.servers.length === 0;
    const withErrors = unavailable.filter((server) => server.last_error !== null);
    setText(errors, withErrors.map((server) => `${server.name}: ${server.last_error}`).join("\n"));
    errors.hidden = withErrors.length === 0;
  }
  return { root, update };
}

/** Requests in progress and their limit, where every server has one. */
function showActive(target, upstream) {
  const gone = ["draining", "disabled", "leaving"];
  const servers = upstream.servers.filter((server) => !gone.includes(server.state));
  const used = sum(upstream.servers, (s) => s.active);
  const open = sum(upstream.servers, (s) => s.connections_open);
  const isBounded = servers.length > 0 && servers.every((s) => s.max_active !== null);
  const slots = isBounded ? sum(servers, (s) => s.max_active) : 0;
  target.show(count(used), isBounded ? `of ${plural(slots, "slot", "slots")}` : "",
    upstream.up ? plural(open, "connection", "connections") : "no server is up",
    upstream.up ? "" : "bad");
  target.fill(used, slots);
}

/** Requests per second of each server over the last seconds. */
class Rates {
  histories = new Map();

  /** The servers, each with its `rate`. */
  of(servers, at) {
    const before = this.histories;
    this.histories = new Map();
    return servers.map((server) => {
      // A server that is added again while it leaves is listed twice.
      const key = `${server.name} ${server.state === "leaving"}`;
      const history = before.get(key) || new History();
      history.add(at, server.requests, []);
      this.histories.set(key, history);
      return { ...server, rate: history.rate(5) };
    });
  }
}
