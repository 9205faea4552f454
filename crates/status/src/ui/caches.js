// Views of caches and of thread pools for blocking work.
//
// app.js makes the views and passes each snapshot to them; elements.js draws. A row per cache, and
// figures for all caches together.

import { figure, fullness, setText, table } from "./elements.js";
import { Differences, History } from "./history.js";
import { bytes, count, plural, rate, time } from "./numbers.js";
import { showErrors, stateTone } from "./views.js";

const sum = (rows, value) => rows.reduce((total, row) => total + value(row), 0);

/** The share of hits, such as "97.3 %"; "–" without look-ups. */
function share(hits, misses) {
  return hits + misses > 0 ? `${((100 * hits) / (hits + misses)).toFixed(1)} %` : "–";
}

const mean = (seconds, number) => (number > 0 ? time(seconds / number) : "–");

const CACHE_COLUMNS = [
  ["cache", true, (c) => c.name],
  ["state", true, (c) => c.state.replaceAll("_", " "), (c) => stateTone(c.state)],
  ["hit ratio", false, (c) => share(c.last[0], c.last[1])],
  ["look-ups", false, (c) => count(c.counters.hits + c.counters.misses)],
  ["objects", false, (c) => count(c.objects)],
  // A full cache is normal: no alarm.
  ["stored", false, (c) => `${bytes(c.bytes)} of ${bytes(c.max_bytes)}`],
  ["in memory", false, (c) => `${bytes(c.memory_bytes)} of ${bytes(c.max_memory_bytes)}`],
  ["evicted", false, (c) => count(c.counters.evictions)],
  ["read", false, (c) => mean(c.last[3], c.last[2])],
  ["write", false, (c) => mean(c.last[5], c.last[4])],
  ["errors", false, (c) => count(c.counters.errors), (c) => (c.counters.errors > 0 ? "warn" : "")],
  ["directory", true, (c) => c.path ?? "(memory)"],
];

/** Requests of a route that were served from a cache. */
const hitsOf = ({ hits, stale, revalidated, collapsed }) => hits + stale + revalidated + collapsed;

const ROUTE_COLUMNS = [
  ["route", true, (r) => r.name],
  ["hit ratio", false, (r) => share(r.last[0], r.last[1])],
  ["requests / s", false, (r) => rate((r.last[0] + r.last[1] + r.last[2]) / r.seconds)],
  ["fresh", false, (r) => count(r.counters.hits)],
  ["revalidated", false, (r) => count(r.counters.revalidated)],
  ["stale", false, (r) => count(r.counters.stale)],
  ["coalesced", false, (r) => count(r.counters.collapsed)],
  ["misses", false, (r) => count(r.counters.misses)],
  ["bypassed", false, (r) => count(r.counters.bypassed)],
  ["fetch failures", false, (r) => count(r.counters.fetch_failures),
    (r) => (r.counters.fetch_failures > 0 ? "warn" : "")],
  ["from cache", false, (r) => bytes(r.counters.served_bytes)],
  ["caches", true, (r) => r.caches.join(", ")],
];

/** The counters of a cache, in the order of `last`. */
const numbersOf = (cache) => [
  cache.counters.hits, cache.counters.misses,
  cache.read_time.count, cache.read_time.sum_seconds,
  cache.write_time.count, cache.write_time.sum_seconds,
];

/** All caches in the card `root`. */
export function cachesView(root, figures, tables, reasons) {
  const requests = figure(figures, "Requests / s", "chart");
  const hits = figure(figures, "Hit ratio");
  const stored = figure(figures, "Stored", "bar");
  const memory = figure(figures, "In memory", "bar");
  const disks = figure(figures, "Disk operation");
  const errors = figure(figures, "Errors and evictions");
  const showRows = table(tables.caches, CACHE_COLUMNS);
  const showRoutes = table(tables.routes, ROUTE_COLUMNS);
  let history = new History();
  let differences = new PerItemDifferences();
  let routeDifferences = new PerItemDifferences();

  function update(caches, routes, at) {
    root.hidden = caches.length === 0;
    const total = (key) => sum(caches, (cache) => cache.counters[key]);
    const routed = routes.map((route) => route.counters);
    const good = sum(routed, hitsOf);
    const missed = sum(routed, (counters) => counters.misses);
    history.add(at, good + missed + sum(routed, (counters) => counters.bypassed), []);
    const lasts = differences.of(caches, at, numbersOf);
    const last = added(lasts);
    const routeHits = routeDifferences.of(routes, at, (route) =>
      [hitsOf(route.counters), route.counters.misses, route.counters.bypassed]);
    const recent = added(routeHits);
    const peak = requests.draw(history.rates());
    requests.show(rate(history.rate(5)), "", `peak ${rate(peak)} · ${count(good + missed)} total`);
    hits.show(share(recent[0], recent[1]), "", `${share(good, missed)} since start`);
    showUse(stored, caches, "bytes", plural(sum(caches, (c) => c.objects), "object", "objects"));
    showUse(memory, caches, "memory_bytes",
      plural(sum(caches, (c) => c.memory_objects), "object", "objects"));
    disks.show(mean(last[3], last[2]), "to read", `${mean(last[5], last[4])} to write`);
    showErrors(errors,
      [["disk errors", total("errors")], ["fetch failures", sum(routed, (counters) => counters.fetch_failures)]],
      [["evicted", total("evictions")], ["purged", total("purged_objects")]]);
    showRows(caches.map((cache, index) => ({ ...cache, last: lasts[index] })));
    showRoutes(routes.map((route, index) => ({
      ...route, last: routeHits[index], seconds: routeDifferences.seconds(route.name),
    })));
    tables.routes.parentElement.hidden = routes.length === 0;
    const out = caches.filter((cache) => cache.reason !== null);
    setText(reasons, out.map((cache) => `${cache.name}: ${cache.reason}`).join("\n"));
    reasons.hidden = out.length === 0;
  }

  /** Starts anew: another process has its own counters. */
  function reset() {
    history = new History();
    differences = new PerItemDifferences();
    routeDifferences = new PerItemDifferences();
  }
  return { update, reset };
}

/** The columns of some rows of numbers, each added up. */
const added = (rows) => rows[0]?.map((_, index) => sum(rows, (row) => row[index])) ?? [];

function showUse(target, caches, key, note) {
  const used = sum(caches, (cache) => cache[key]);
  const max = sum(caches, (cache) => cache[`max_${key}`]);
  target.show(bytes(used), `of ${bytes(max)}`, note);
  target.fill(used, max);
}

const POOL_COLUMNS = [
  ["pool", true, (p) => p.name],
  ["active threads", false, (p) => `${count(p.active_threads)} of ${count(p.max_threads)}`,
    (p) => fullness(p.active_threads, p.max_threads) && "warn"],
  ["queued", false, (p) => `${count(p.queued)} of ${count(p.max_queued)}`,
    (p) => fullness(p.queued, p.max_queued)],
  ["jobs / s", false, (p) => rate(p.last[0] / p.seconds)],
  ["queue time", false, (p) => mean(p.last[1], p.last[0])],
  ["longest wait", false, (p) => time(p.max_queue_time_seconds)],
  ["run time", false, (p) => mean(p.last[3], p.last[2])],
  ["longest running", false, (p) => time(p.oldest_running_seconds),
    (p) => (p.oldest_running_seconds > 5 ? "warn" : "")],
  ["refused", false, (p) => count(p.refused), (p) => (p.refused > 0 ? "warn" : "")],
];

export function poolsView(rows) {
  const showRows = table(rows, POOL_COLUMNS);
  let differences = new PerItemDifferences();

  function update(pools, at) {
    const lasts = differences.of(pools, at, (pool) => [
      pool.queue_time.count, pool.queue_time.sum_seconds,
      pool.run_time.count, pool.run_time.sum_seconds,
    ]);
    showRows(pools.map((pool, index) => ({
      ...pool, last: lasts[index], seconds: differences.seconds(pool.name),
    })));
  }

  function reset() {
    differences = new PerItemDifferences();
  }
  return { update, reset };
}

/** The differences of the last minute, per named item. */
class PerItemDifferences {
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
