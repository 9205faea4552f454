// The last minutes of counters and histograms, taken from the snapshots.
//
// Rates, means and percentiles are differences of two samples. Times are the server's uptime, so
// that a suspended browser or a late event does not change a rate.

import { time } from "./numbers.js";

export const HISTORY_SECONDS = 300;
export const WINDOW_SECONDS = 60;

/** Samples of one counter and some histograms over the last minutes. */
export class History {
  samples = [];

  add(at, total, times) {
    const before = this.samples.at(-1);
    // A counter that fell belongs to a new process or a replaced application.
    if (before && (at < before.at || total < before.total)) this.samples = [];
    this.samples.push({ at, total, times: times.map((t) => t.buckets.counts) });
    while (this.samples[0].at < at - HISTORY_SECONDS) this.samples.shift();
  }

  /** Rates between neighbours: [time, per second]. */
  rates() {
    return this.samples.slice(1).map((sample, index) => {
      const before = this.samples[index];
      return [sample.at, (sample.total - before.total) / Math.max(sample.at - before.at, 0.001)];
    });
  }

  /** Rate over the last seconds; null before there are two samples. */
  rate(seconds) {
    const [first, last] = this.window(seconds);
    if (!first || first === last) return null;
    return (last.total - first.total) / Math.max(last.at - first.at, 0.001);
  }

  window(seconds) {
    const last = this.samples[this.samples.length - 1];
    return [this.samples.find((sample) => sample.at >= last.at - seconds - 0.5), last];
  }

  /** The quantile of the last minute as a text; null when nothing was measured. */
  quantile(index, q, bounds) {
    const [first, last] = this.window(WINDOW_SECONDS);
    const counts = last.times[index].map((now, i) => now - first.times[index][i]);
    return quantileText(counts, q, bounds);
  }
}

/** A quantile, interpolated within its bucket as the server does; null of no counts. */
export function quantileText(counts, q, bounds) {
  const total = counts.reduce((sum, n) => sum + n, 0);
  if (total <= 0) return null;
  let seen = 0;
  const bucket = counts.findIndex((n) => {
    const isIn = n > 0 && seen + n >= q * total;
    if (!isIn) seen += n;
    return isIn;
  });
  if (bucket < 0 || bucket >= bounds.length) return `> ${time(bounds.at(-1))}`;
  const lower = bucket === 0 ? 0 : bounds[bucket - 1];
  return time(lower + (bounds[bucket] - lower) * ((q * total - seen) / counts[bucket]));
}

/** The growth of some counters over the last minute. */
export class Differences {
  samples = [];

  add(at, sums) {
    const before = this.samples.at(-1);
    // A counter that fell was replaced by a reload.
    if (before && (at < before.at || sums.some((sum, i) => sum < before.sums[i]))) this.samples = [];
    this.samples.push({ at, sums });
    while (this.samples[0].at < at - WINDOW_SECONDS - 0.5) this.samples.shift();
  }

  last() {
    const first = this.samples[0].sums;
    return this.samples.at(-1).sums.map((sum, i) => sum - first[i]);
  }

  /** The time between the first and the last sample. */
  seconds() {
    return Math.max(this.samples.at(-1).at - this.samples[0].at, 0.001);
  }
}
