// Charts of the last minutes: connections, requests, response time, memory, load.
//
// app.js makes the view and passes each snapshot to it. Charts show values, or differences between
// two samples.
//
// Invariants:
// - A line has a gap, not a zero, where nothing was measured.
// - A number that the server estimates is called an estimate.

import { make, makeSvg, setText } from "./elements.js";
import { HISTORY_SECONDS } from "./history.js";
import { bytes, count, rate, time } from "./numbers.js";

/** The window of the response-time percentile. */
const SLOWEST_SECONDS = 5;
/** The shortest time that a chart spans. */
const SHORTEST_SECONDS = 60;
const WIDTH = 300;
const HEIGHT = 60;

const kernelBytes = ({ machine }) =>
  machine.estimated_socket_bytes + (machine.tcp_buffer_bytes ?? 0);

/** Name, one or two lines (value of a sample), and the texts: value, unit, note. */
const CHARTS = [
  ["Connections", [(s) => s.connections, (s) => s.hubConnections],
    (s) => [count(s.connections), "", `┄ ${count(s.hubConnections)} of the hub`]],
  ["Accepted / s", [(s) => s.opened], (s) => [rate(s.opened), "", ""]],
  ["Requests / s", [(s) => s.requests], (s) => [rate(s.requests), "", ""]],
  ["Response time", [(s) => s.mean, (s) => s.slowest],
    (s) => (s.mean === null
      ? ["–", "", "none in the last seconds"]
      : [time(s.mean), "mean", `┄ p99 ${s.isBeyondBuckets ? ">" : "≤"} ${time(s.slowest)}`])],
  ["Memory", [(s) => s.serverBytes, (s) => s.kernelBytes],
    (s) => [bytes(s.serverBytes), "server", `┄ ${bytes(s.kernelBytes)} kernel (estimate)`]],
  ["Load", [(s) => s.load], (s) => [s.load === null ? "–" : s.load.toFixed(2), "", "last minute"]],
];

const TEXT_OF_PEAK = [count, rate, rate, time, bytes, (load) => load.toFixed(2)];

export function chartsView(parent) {
  const charts = CHARTS.map(([name, lines]) => chart(parent, name, lines.length));
  let samples = [];

  function update(now) {
    const sample = sampled(now, samples);
    const before = samples.at(-1);
    if (before && sample.at < before.at) samples = [];
    samples.push(sample);
    while (samples[0].at < sample.at - HISTORY_SECONDS) samples.shift();
    CHARTS.forEach(([, lines, texts], index) => {
      const peak = charts[index].draw(samples, lines);
      const [value, unit, note] = texts(sample);
      const highest = peak > 0 ? `peak ${TEXT_OF_PEAK[index](peak)}` : "";
      charts[index].show(value, unit, [note, highest].filter(Boolean).join(" · "));
    });
  }

  /** Starts anew: another process has its own counters. */
  function reset() {
    samples = [];
  }
  return { update, reset };
}

/** The sample of a snapshot, with rates since the samples before it. */
function sampled(now, samples) {
  const { traffic, machine, hub } = now;
  const sample = {
    at: now.uptime_seconds,
    connections: now.connections.used,
    hubConnections: hub.connections.used,
    serverBytes: now.resident_bytes,
    kernelBytes: kernelBytes(now),
    load: machine.load_average,
    accepted: traffic.accepted,
    answered: traffic.requests_total,
    times: traffic.total_time,
    opened: null, requests: null, mean: null, slowest: null, isBeyondBuckets: false,
  };
  const before = samples.at(-1);
  if (!before || sample.at <= before.at) return sample;
  const seconds = Math.max(sample.at - before.at, 0.001);
  sample.opened = (sample.accepted - before.accepted) / seconds;
  sample.requests = (sample.answered - before.answered) / seconds;
  const first = samples.find((other) => other.at >= sample.at - SLOWEST_SECONDS - 0.5) ?? before;
  const number = sample.times.count - first.times.count;
  if (number <= 0) return sample;
  sample.mean = (sample.times.sum_seconds - first.times.sum_seconds) / number;
  const bounds = sample.times.buckets.le_seconds;
  const counts = sample.times.buckets.counts.map((c, i) => c - first.times.buckets.counts[i]);
  let seen = 0;
  const bucket = counts.findIndex((c) => (seen += c) >= 0.99 * number);
  sample.isBeyondBuckets = bucket < 0 || bucket >= bounds.length;
  sample.slowest = sample.isBeyondBuckets ? bounds.at(-1) : bounds[bucket];
  return sample;
}

/** A named number with a chart of `number` lines. */
function chart(parent, name, number) {
  const main = make("span");
  const unit = make("small");
  const value = make("span", "value", main, " ", unit);
  const note = make("span", "note");
  const root = makeSvg("svg", {
    class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none",
    "aria-hidden": "true",
  });
  const ground = makeSvg("path", { class: "ground" });
  const paths = Array.from({ length: number }, (_, index) =>
    makeSvg("path", { class: index === 0 ? "first" : "second" }));
  root.append(ground, ...paths);
  parent.append(make("div", "", make("span", "name", name), value, root, note));

  /** Draws all lines on one scale and returns the highest value. */
  function draw(samples, lines) {
    const last = samples.at(-1).at;
    const values = lines.map((line) => samples.map(line));
    const peak = Math.max(0, ...values.flat().filter((value) => value !== null));
    const span = Math.max(last - samples[0].at, SHORTEST_SECONDS);
    const x = (at) => (WIDTH - ((last - at) / span) * WIDTH).toFixed(1);
    const y = (value) => (HEIGHT - 2 - (peak > 0 ? value / peak : 0) * (HEIGHT - 4)).toFixed(1);
    ground.setAttribute("d", `M0,${HEIGHT - 0.5}H${WIDTH}`);
    values.forEach((ofLine, index) => {
      let isDown = false;
      const steps = ofLine.map((value, i) => {
        const step = value === null ? "" : `${isDown ? "L" : "M"}${x(samples[i].at)},${y(value)}`;
        isDown = value !== null;
        return step;
      });
      paths[index].setAttribute("d", steps.join(""));
    });
    return peak;
  }

  function show(text, small, below) {
    setText(main, text);
    setText(unit, small);
    setText(note, below);
  }
  return { draw, show };
}
