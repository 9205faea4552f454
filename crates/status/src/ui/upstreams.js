// What the page shows of each upstream: its queue, its times, and a row for each server.
//
// app.js makes the views and hands them each snapshot; elements.js draws. One row a server and
// figures for all of them together, so that thirty servers still fit one screen.

import { figure, fullness, make, setClass, setText, table } from "./elements.js";
import { History } from "./history.js";
import { count, plural, rate, time } from "./numbers.js";
import { showTimes, showTroubles, stateTone } from "./views.js";

const sum = (rows, value) => rows.reduce((total, row) => total + value(row), 0);

/** Takes no requests and should. */
const isTroubled = (server) => ["ejected", "probing", "down"].includes(server.state);

/** What an upstream is called in one word. */
export function upstreamState(upstream) {
  if (!upstream.up) return "down";
  return upstream.servers.some(isTroubled) ? "degraded" : "up";
}

const SERVER_COLUMNS = [
  ["server", true, (s) => s.name + (s.backup ? " (backup)" : "")],
  ["state", true, (s) => s.state, (s) => stateTone(s.state)],
  // All slots at work is what they are for: no alarm.
  ["in progress", false, (s) => count(s.active) + (s.active_max === null ? "" : ` of ${count(s.active_max)}`)],
  ["requests / s", false, (s) => rate(s.rate)],
  ["requests", false, (s) => count(s.requests)],
  ["failed", false, (s) => count(s.failures), (s) => (s.failures > 0 ? "warn" : "")],
  ["timed out", false, (s) => count(s.timeouts), (s) => (s.timeouts > 0 ? "warn" : "")],
  ["connections", false, (s) => count(s.connections_open)],
  ["idle", false, (s) => count(s.connections_idle)],
  ["connected", false, (s) => count(s.connects)],
  ["reused", false, (s) => count(s.reuses)],
  ["weight", false, (s) => count(s.weight)],
];

export function upstreamView(name) {
  const state = make("span");
  const about = make("span", "quiet");
  const figures = make("div", "figures");
  const requests = figure(figures, "Requests / s", "chart");
  const queue = figure(figures, "Waiting", "bar");
  const active = figure(figures, "In progress", "bar");
  const waiting = figure(figures, "Waiting time");
  const answering = figure(figures, "Time to answer");
  const refused = figure(figures, "Refused, retried");
  const servers = make("table");
  const showServers = table(servers, SERVER_COLUMNS);
  const errors = make("pre");
  const root = make("section", "card",
    make("div", "title", make("h2", "", name), state, about),
    figures, make("div", "scroll", servers), errors);
  const history = new History();
  const rates = new Rates();

  function update(upstream, at) {
    const { counters, queue: line } = upstream;
    history.add(at, counters.requests,
      [upstream.queue_time, upstream.answer_time, upstream.connect_time]);
    const word = upstreamState(upstream);
    setText(state, word);
    setClass(state, `pill ${stateTone(word)}`);
    const troubled = upstream.servers.filter(isTroubled);
    const inTrouble = troubled.length > 0 ? `, ${count(troubled.length)} in trouble` : "";
    setText(about,
      `${upstream.protocol} · ${plural(upstream.servers.length, "server", "servers")}${inTrouble}`);
    const peak = requests.draw(history.rates());
    requests.show(rate(history.rate(5)), "",
      `peak ${rate(peak)} · ${count(counters.requests)} in all`);
    queue.show(count(line.waiting), `of ${count(line.max)}`,
      line.waiting > 0 ? `oldest ${time(line.oldest_wait_seconds)}` : "nobody waits");
    queue.fill(line.waiting, line.max, fullness(line.waiting, line.max));
    showActive(active, upstream);
    showTimes(waiting, history, 0, upstream.queue_time);
    const connecting = history.quantile(2, 0.99, upstream.connect_time.buckets.le_seconds);
    showTimes(answering, history, 1, upstream.answer_time,
      connecting === null ? "" : ` · connect p99 ${connecting}`);
    showTroubles(refused, [
      ["queue full", counters.queue_full], ["waited too long", counters.queue_timeout],
      ["no server up", counters.unavailable], ["left waiting", counters.queue_abandoned],
      ["retried", counters.retries], ["retry refused", counters.retries_refused],
    ]);
    showServers(rates.of(upstream.servers, at));
    servers.parentElement.hidden = upstream.servers.length === 0;
    const said = troubled.filter((server) => server.last_error !== null);
    setText(errors, said.map((server) => `${server.name}: ${server.last_error}`).join("\n"));
    errors.hidden = said.length === 0;
  }
  return { root, update };
}

/** Requests in progress against all that may be, where all servers have a bound. */
function showActive(target, upstream) {
  const gone = ["draining", "disabled", "leaving"];
  const servers = upstream.servers.filter((server) => !gone.includes(server.state));
  const used = sum(upstream.servers, (s) => s.active);
  const open = sum(upstream.servers, (s) => s.connections_open);
  const isBounded = servers.length > 0 && servers.every((s) => s.active_max !== null);
  const slots = isBounded ? sum(servers, (s) => s.active_max) : 0;
  target.show(count(used), isBounded ? `of ${plural(slots, "slot", "slots")}` : "",
    upstream.up ? plural(open, "connection", "connections") : "no server is up",
    upstream.up ? "" : "bad");
  target.fill(used, slots);
}

/** Requests a second of each server, from the counts of the last seconds. */
class Rates {
  histories = new Map();

  /** The servers, each with its `rate`. */
  of(servers, at) {
    const before = this.histories;
    this.histories = new Map();
    return servers.map((server) => {
      // An address that was added again while it leaves is there twice.
      const key = `${server.name} ${server.state === "leaving"}`;
      const history = before.get(key) || new History();
      history.add(at, server.requests, []);
      this.histories.set(key, history);
      return { ...server, rate: history.rate(5) };
    });
  }
}
