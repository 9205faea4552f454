// The last minutes of one counter and some histograms, or of some sums, taken from the snapshots.
//
// Rates, means and percentiles of the last minute are differences of two samples; the server only counts.
// Times are the server's own uptime, so that a sleeping laptop or a late event bends no rate.

import { time } from "./numbers.js";

export const HISTORY_SECONDS = 300;
export const WINDOW_SECONDS = 60;

/** Samples of one counter and some histograms over the last minutes. */
export class History {
  samples = [];

  add(at, total, times) {
    const before = this.samples.at(-1);
    // Smaller than before: a new process, or a reload that replaced the application.
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

  /** "≤ 5 ms": the bucket of the quantile in the last minute; null when nothing was measured. */
  quantile(index, q, bounds) {
    const [first, last] = this.window(WINDOW_SECONDS);
    const counts = last.times[index].map((now, i) => now - first.times[index][i]);
    const total = counts.reduce((sum, n) => sum + n, 0);
    if (total <= 0) return null;
    let seen = 0;
    const bucket = counts.findIndex((n) => (seen += n) >= q * total);
    return bucket < bounds.length ? `≤ ${time(bounds[bucket])}` : `> ${time(bounds.at(-1))}`;
  }
}

/** What some sums that only grow have gained in the last minute. */
export class Differences {
  samples = [];

  add(at, sums) {
    const before = this.samples.at(-1);
    // Smaller than before: a reload that replaced what is counted.
    if (before && (at < before.at || sums.some((sum, i) => sum < before.sums[i]))) this.samples = [];
    this.samples.push({ at, sums });
    while (this.samples[0].at < at - WINDOW_SECONDS - 0.5) this.samples.shift();
  }

  last() {
    const first = this.samples[0].sums;
    return this.samples.at(-1).sums.map((sum, i) => sum - first[i]);
  }

  /** The time that these are of. */
  seconds() {
    return Math.max(this.samples.at(-1).at - this.samples[0].at, 0.001);
  }
}
