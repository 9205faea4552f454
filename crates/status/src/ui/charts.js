// Charts of the last hour: requests, response time, queues, memory, connections, load.
//
// The server keeps a sample of every ten seconds and serves them as /history.json, so that a chart
// begins before the page was opened. app.js makes the view and asks it to load.
//
// Invariants:
// - A line has a gap, not a zero, where nothing was measured.
// - Every axis has its unit: times of day below, numbers of one kind at the left.

import { make, makeSvg, setText } from "./elements.js";
import { bytes, count, dayTime, time } from "./numbers.js";

/** The shortest time that a chart spans, in seconds. */
const SHORTEST_SECONDS = 300;
const HEIGHT = 150;
const MARGIN = { left: 58, right: 8, top: 8, bottom: 20 };
/** Steps of the time axis in seconds. */
const TIME_STEPS = [60, 120, 300, 600, 900, 1800];

const load = (number) => number.toFixed(2);
const perSecond = (number) => (number < 10 ? String(Number(number.toPrecision(2))) : count(number));

/**
 * Title, the text of a value, the base of the axis's steps with the least step, and the lines: label
 * and column.
 */
const CHARTS = [
  ["Requests per second", perSecond, [10, 0], [
    ["all", "requests_per_second"], ["errors (5xx)", "errors_per_second", "bad"],
  ]],
  ["Response time", time, [10, 0], [
    ["p50", "p50_seconds"], ["p95", "p95_seconds", "second"], ["p99", "p99_seconds", "third"],
  ]],
  ["Queued requests", count, [10, 1], [["waiting", "queued"]]],
  ["Memory", bytes, [2, 1], [["server", "server_bytes"], ["workers", "worker_bytes", "second"]]],
  ["Connections", count, [10, 1], [
    ["open", "connections"], ["of the hub", "hub_connections", "second"],
  ]],
  ["Load average", load, [10, 0.01], [["last minute", "load_average"]]],
];

export function chartsView(parent) {
  const charts = CHARTS.map((definition) => chart(parent, ...definition));
  let history = null;
  const draw = () => {
    if (history && history.at.length > 0) charts.forEach((one) => one.draw(history));
  };
  window.addEventListener("resize", draw);

  /** Loads the samples and draws them; what cannot be loaded leaves the charts as they are. */
  async function update() {
    try {
      const response = await fetch("/history.json");
      if (!response.ok) return;
      history = await response.json();
    } catch {
      return;
    }
    draw();
  }
  return { update };
}

/** One chart with axes, a legend and the latest and highest value of each line. */
function chart(parent, title, text, scale, lines) {
  const root = makeSvg("svg", { class: "chart", height: HEIGHT, role: "img" });
  const grid = makeSvg("g", { class: "grid" });
  const paths = lines.map(([, , tone]) => makeSvg("path", { class: `line ${tone ?? ""}` }));
  root.append(grid, ...paths);
  const legend = lines.map(([label, , tone]) => {
    const value = make("span");
    return { value, root: make("span", `key ${tone ?? ""}`, `${label} `, value) };
  });
  parent.append(make("div", "", make("span", "name", title), root,
    make("span", "note legend", ...legend.map((one) => one.root))));

  function draw(history) {
    const { at } = history;
    const width = Math.max(root.clientWidth, 200);
    root.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    const values = lines.map(([, column]) => history[column]);
    const peaks = values.map((list) => Math.max(0, ...list.filter((value) => value !== null)));
    const ticks = valueTicks(Math.max(...peaks), scale);
    const [last, first] = [at.at(-1), at.at(-1) - Math.max(at.at(-1) - at[0], SHORTEST_SECONDS)];
    const x = (second) => MARGIN.left
      + ((second - first) / (last - first)) * (width - MARGIN.left - MARGIN.right);
    const y = (value) => HEIGHT - MARGIN.bottom
      - (value / ticks.at(-1)) * (HEIGHT - MARGIN.top - MARGIN.bottom);
    drawGrid(ticks, x, y, [first, last], width);
    paths.forEach((path, index) => path.setAttribute("d", steps(at, values[index], x, y,
      history.interval_seconds)));
    legend.forEach(({ value }, index) => {
      const latest = values[index].at(-1);
      const now = latest === null ? "–" : text(latest);
      setText(value, `${now}, peak ${text(peaks[index])}`);
    });
    const summary = lines.map(([label], index) => `${label} ${legend[index].value.textContent}`);
    root.setAttribute("aria-label", `${title}: ${summary.join("; ")}`);
  }

  function drawGrid(ticks, x, y, [first, last], width) {
    grid.replaceChildren();
    for (const value of ticks) {
      grid.append(line(MARGIN.left, y(value), width - MARGIN.right, y(value)));
      grid.append(label(MARGIN.left - 6, y(value) + 4, "end", text(value)));
    }
    for (const second of timeTicks(first, last, width)) {
      grid.append(line(x(second), HEIGHT - MARGIN.bottom, x(second), HEIGHT - MARGIN.bottom + 4));
      grid.append(label(x(second), HEIGHT - 4, "middle", dayTime(second)));
    }
  }
  return { draw };
}

const line = (x1, y1, x2, y2) =>
  makeSvg("line", { x1: x1.toFixed(1), y1: y1.toFixed(1), x2: x2.toFixed(1), y2: y2.toFixed(1) });

function label(x, y, anchor, words) {
  const element = makeSvg("text", { x: x.toFixed(1), y: y.toFixed(1), "text-anchor": anchor });
  element.textContent = words;
  return element;
}

/** The path of a line, with gaps where values or samples are missing. */
function steps(at, values, x, y, interval) {
  let before = null;
  return values.map((value, index) => {
    if (value === null) {
      before = null;
      return "";
    }
    const isGap = before === null || at[index] - before > 2.5 * interval;
    before = at[index];
    // A point between two gaps is drawn as a dot.
    const dot = isGap && (values[index + 1] ?? null) === null ? "h0.1" : "";
    return `${isGap ? "M" : "L"}${x(at[index]).toFixed(1)},${y(value).toFixed(1)}${dot}`;
  }).join("");
}

/** Values from 0 to `peak` or a little more, in steps of 1, 2 or 5 times a power of the base. */
function valueTicks(peak, [base, least]) {
  if (!(peak > 0)) return [0, 1];
  const rough = peak / 4;
  const power = base ** Math.floor(Math.log(rough) / Math.log(base));
  const steps = (base === 2 ? [1, 2] : [1, 2, 5, 10]).map((times) => times * power);
  const step = Math.max(least, steps.find((one) => one >= rough * 0.999));
  const number = Math.ceil(peak / step - 0.001);
  return Array.from({ length: number + 1 }, (_, index) => index * step);
}

/** Round times of day between two times, as many as have room. */
function timeTicks(first, last, width) {
  const room = Math.max(2, Math.floor(width / 90));
  const step = TIME_STEPS.find((one) => (last - first) / one <= room) ?? 3600;
  const start = Math.ceil(first / step) * step;
  const ticks = [];
  // Labels near the edges would be cut.
  const edge = (last - first) * 0.04;
  for (let at = start; at <= last - edge; at += step) {
    if (at >= first + edge) ticks.push(at);
  }
  return ticks;
}
