// View of the rules of routes, with the requests that each has decided; pauses and maintenance; what
// compression has saved; the routes and clients with most requests.
//
// app.js makes the view and passes each snapshot to it; elements.js draws. The card is hidden
// where no route has a rule.

import { table } from "./elements.js";
import { age, bytes, count } from "./numbers.js";

const TONES = { refused: "warn", unavailable: "bad", failed: "bad", dropped: "warn" };
/** Rows that are shown: a site with thousands of routes has as many. */
const SHOWN_ROWS = 200;

const total = (rule) => rule.counts.reduce((sum, { requests }) => sum + requests, 0);

function countsText({ counts }) {
  const counted = counts.filter(({ requests }) => requests > 0);
  return counted.map(({ outcome, requests }) => `${count(requests)} ${outcome}`).join(", ") || "0";
}

function tone({ counts }) {
  const tones = counts.filter(({ requests }) => requests > 0).map(({ outcome }) => TONES[outcome]);
  return tones.includes("bad") ? "bad" : tones.find(Boolean) ?? "";
}

const COLUMNS = [
  ["route", true, (r) => r.route],
  ["rule", true, (r) => r.rule],
  ["requests", true, countsText, tone],
  ["in use", false, (r) => (r.in_use === null ? "" : count(r.in_use))],
];

const topColumns = (name) => [
  [name, true, (entry) => entry.name],
  ["share", false, (entry) => `${Math.min(100, (100 * entry.requests) / entry.total).toFixed(1)} %`],
];

/** The routes and clients with most requests in the card `root`. */
export function topView(root, routes, clients) {
  const showRoutes = table(routes, topColumns("route"));
  const showClients = table(clients, topColumns("client"));
  return (top) => {
    root.hidden = top.requests === 0;
    const entries = (list) => list.slice(0, 10).map((entry) => ({ ...entry, total: top.requests }));
    showRoutes(entries(top.routes));
    showClients(entries(top.clients));
  };
}

/** What compression has saved; empty where nothing was compressed. */
export function compressionText({ zstd, br, gzip, input_bytes: before, output_bytes: behind, skipped }) {
  const codings = Object.entries({ zstd, br, gzip }).filter(([, responses]) => responses > 0);
  if (codings.length === 0 && skipped === 0) return "";
  const kinds = codings.map(([name, responses]) => `${count(responses)} ${name}`).join(", ") || "none";
  const saved = before > 0 ? `: ${bytes(before)} became ${bytes(behind)}` : "";
  const rest = skipped > 0 ? `; ${count(skipped)} not compressed for want of memory` : "";
  return `${kinds}${saved}${rest}`;
}

export function maintenanceText({ site, allow }) {
  const others = allow.length > 0 ? ` Clients of ${allow.join(", ")} are served.` : "";
  return `Maintenance of ${site === null ? "all sites" : site}: clients get 503.${others}`;
}

export function pauseText({ kind, name, waiting, remaining_seconds: left }) {
  const state = left > 0 ? `${count(waiting)} requests wait, for up to ${age(left)}` : "new requests get 503";
  return `The ${kind === "app" ? "application" : kind} ${name} is paused: ${state}.`;
}

/** The rules in the card `root`: all of a short list, of a long one those with most requests. */
export function rulesView(root, rows) {
  const showRows = table(rows, COLUMNS);
  return (rules) => {
    root.hidden = rules.length === 0;
    const shown = rules.length <= SHOWN_ROWS
      ? rules
      : [...rules].sort((a, b) => total(b) - total(a)).slice(0, SHOWN_ROWS);
    showRows(shown);
  };
}
