// What the page shows of what waits for disks: the caches, and the pools for blocking work.
//
// app.js makes the views and hands them each snapshot; elements.js draws. One row a cache and figures
// for all of them together, since several disks are mostly one cache to those who use it.

import { figure, fullness, setText, table } from "./elements.js";
import { Differences, History } from "./history.js";
import { bytes, count, plural, rate, time } from "./numbers.js";
import { showTroubles, stateTone } from "./views.js";

const sum = (rows, value) => rows.reduce((total, row) => total + value(row), 0);

/** "97.3 %": the share of hits; "–" when nothing was asked. */
function share(hits, misses) {
  return hits + misses > 0 ? `${((100 * hits) / (hits + misses)).toFixed(1)} %` : "–";
}

const mean = (seconds, number) => (number > 0 ? time(seconds / number) : "–");

const CACHE_COLUMNS = [
  ["cache", true, (c) => c.name],
  ["state", true, (c) => c.state, (c) => stateTone(c.state)],
  ["found", false, (c) => share(c.last[0], c.last[1])],
  ["asked", false, (c) => count(c.counters.hits + c.counters.misses)],
  ["objects", false, (c) => count(c.objects)],
  // A full cache is what it is for: no alarm.
  ["stored", false, (c) => `${bytes(c.bytes)} of ${bytes(c.bytes_max)}`],
  ["in memory", false, (c) => `${bytes(c.memory_bytes)} of ${bytes(c.memory_bytes_max)}`],
  ["evicted", false, (c) => count(c.counters.evicted)],
  ["read", false, (c) => mean(c.last[3], c.last[2])],
  ["write", false, (c) => mean(c.last[5], c.last[4])],
  ["errors", false, (c) => count(c.counters.errors), (c) => (c.counters.errors > 0 ? "warn" : "")],
  ["folder", true, (c) => c.path ?? "(memory)"],
];

/** Requests of a route by what became of them: those that what is stored was good for, and the rest. */
const goodOf = ({ hits, stale, validated, collapsed }) => hits + stale + validated + collapsed;

const ROUTE_COLUMNS = [
  ["route", true, (r) => r.name],
  ["hits", false, (r) => share(r.last[0], r.last[1])],
  ["requests / s", false, (r) => rate((r.last[0] + r.last[1] + r.last[2]) / r.seconds)],
  ["fresh", false, (r) => count(r.counters.hits)],
  ["confirmed", false, (r) => count(r.counters.validated)],
  ["stale", false, (r) => count(r.counters.stale)],
  ["shared", false, (r) => count(r.counters.collapsed)],
  ["missed", false, (r) => count(r.counters.misses)],
  ["passed", false, (r) => count(r.counters.passed)],
  ["failed", false, (r) => count(r.counters.failures),
    (r) => (r.counters.failures > 0 ? "warn" : "")],
  ["from cache", false, (r) => bytes(r.counters.body_bytes)],
  ["caches", true, (r) => r.caches.join(", ")],
];

/** What is counted of a cache, in the order of `last`. */
const numbersOf = (cache) => [
  cache.counters.hits, cache.counters.misses,
  cache.read_time.count, cache.read_time.sum_seconds,
  cache.write_time.count, cache.write_time.sum_seconds,
];

/** All caches in one card, which `root` is. */
export function cachesView(root, figures, tables, reasons) {
  const asked = figure(figures, "Requests / s", "chart");
  const hits = figure(figures, "Hits");
  const stored = figure(figures, "Stored", "bar");
  const memory = figure(figures, "In memory", "bar");
  const disks = figure(figures, "Disk operation");
  const troubles = figure(figures, "Failed, evicted");
  const showRows = table(tables.caches, CACHE_COLUMNS);
  const showRoutes = table(tables.routes, ROUTE_COLUMNS);
  let history = new History();
  let differences = new Each();
  let ofRoutes = new Each();

  function update(caches, routes, at) {
    root.hidden = caches.length === 0;
    const total = (key) => sum(caches, (cache) => cache.counters[key]);
    const routed = routes.map((route) => route.counters);
    const good = sum(routed, goodOf);
    const missed = sum(routed, (counters) => counters.misses);
    history.add(at, good + missed + sum(routed, (counters) => counters.passed), []);
    const lasts = differences.of(caches, at, numbersOf);
    const last = added(lasts);
    const goods = ofRoutes.of(routes, at, (route) =>
      [goodOf(route.counters), route.counters.misses, route.counters.passed]);
    const lately = added(goods);
    const peak = asked.draw(history.rates());
    asked.show(rate(history.rate(5)), "", `peak ${rate(peak)} · ${count(good + missed)} in all`);
    hits.show(share(lately[0], lately[1]), "", `${share(good, missed)} since start`);
    showUse(stored, caches, "bytes", plural(sum(caches, (c) => c.objects), "object", "objects"));
    showUse(memory, caches, "memory_bytes",
      plural(sum(caches, (c) => c.memory_objects), "object", "objects"));
    disks.show(mean(last[3], last[2]), "to read", `${mean(last[5], last[4])} to write`);
    showTroubles(troubles,
      [["on disk", total("errors")], ["fetches", sum(routed, (counters) => counters.failures)]],
      [["evicted", total("evicted")], ["purged", total("purged")]]);
    showRows(caches.map((cache, index) => ({ ...cache, last: lasts[index] })));
    showRoutes(routes.map((route, index) => ({
      ...route, last: goods[index], seconds: ofRoutes.seconds(route.name),
    })));
    tables.routes.parentElement.hidden = routes.length === 0;
    const out = caches.filter((cache) => cache.reason !== null);
    setText(reasons, out.map((cache) => `${cache.name}: ${cache.reason}`).join("\n"));
    reasons.hidden = out.length === 0;
  }

  /** Another process: its counters have nothing to do with those before. */
  function forget() {
    history = new History();
    differences = new Each();
    ofRoutes = new Each();
  }
  return { update, forget };
}

/** The columns of some rows of numbers, each added up. */
const added = (rows) => rows[0]?.map((_, index) => sum(rows, (row) => row[index])) ?? [];

function showUse(target, caches, key, note) {
  const used = sum(caches, (cache) => cache[key]);
  const max = sum(caches, (cache) => cache[`${key}_max`]);
  target.show(bytes(used), `of ${bytes(max)}`, note);
  target.fill(used, max);
}

const POOL_COLUMNS = [
  ["pool", true, (p) => p.name],
  ["threads at work", false, (p) => `${count(p.active)} of ${count(p.threads)}`,
    (p) => fullness(p.active, p.threads) && "warn"],
  ["queued", false, (p) => `${count(p.queued)} of ${count(p.max_queue)}`,
    (p) => fullness(p.queued, p.max_queue)],
  ["jobs / s", false, (p) => rate(p.last[0] / p.seconds)],
  ["waiting", false, (p) => mean(p.last[1], p.last[0])],
  ["longest", false, (p) => time(p.queue_time_max_seconds)],
  ["at work", false, (p) => mean(p.last[3], p.last[2])],
  ["oldest job", false, (p) => time(p.oldest_seconds), (p) => (p.oldest_seconds > 5 ? "warn" : "")],
  ["refused", false, (p) => count(p.refused), (p) => (p.refused > 0 ? "warn" : "")],
];

export function poolsView(rows) {
  const showRows = table(rows, POOL_COLUMNS);
  let differences = new Each();

  function update(pools, at) {
    const lasts = differences.of(pools, at, (pool) => [
      pool.queue_time.count, pool.queue_time.sum_seconds,
      pool.work_time.count, pool.work_time.sum_seconds,
    ]);
    showRows(pools.map((pool, index) => ({
      ...pool, last: lasts[index], seconds: differences.seconds(pool.name),
    })));
  }

  function forget() {
    differences = new Each();
  }
  return { update, forget };
}

/** What each of some named parts has counted in the last minute. */
class Each {
  parts = new Map();

  of(parts, at, numbers) {
    const before = this.parts;
    this.parts = new Map();
    return parts.map((part) => {
      const differences = before.get(part.name) || new Differences();
      differences.add(at, numbers(part));
      this.parts.set(part.name, differences);
      return differences.last();
    });
  }

  seconds(name) {
    return this.parts.get(name).seconds();
  }
}
