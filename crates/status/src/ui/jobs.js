// View of the jobs that run at times: the last run with its result, and the next.
//
// app.js makes the view and passes each snapshot to it; elements.js draws. The card is hidden
// without such a job. Jobs that run all the time are shown as applications are.

import { setText, table } from "./elements.js";
import { age, count, dateTime, time } from "./numbers.js";

const COLUMNS = [
  ["job", true, (job) => job.name],
  ["runs", true, (job) => job.schedule],
  ["last run", true, ({ last }) => (last === null ? "never" : dateTime(last.started_at))],
  ["result", true, ({ last }) => (last === null ? "" : `${last.outcome} after ${time(last.seconds)}`),
    ({ last }) => (last === null ? "" : last.succeeded ? "good" : "bad")],
  ["next run", true, (job) => (job.next_at === null ? "" : dateTime(job.next_at))],
  ["now", true, (job) => (job.running_since === null ? ""
    : `runs for ${age(Math.max(0, Date.now() / 1000 - job.running_since))} (pid ${job.pid ?? "–"})`)],
  ["succeeded", false, (job) => count(job.runs.succeeded)],
  ["failed", false, (job) => count(job.runs.failed), (job) => (job.runs.failed > 0 ? "warn" : "")],
  ["left out", false, (job) => count(job.runs.skipped)],
  ["command", true, (job) => job.command],
];

/** The jobs in the card `root`; `lines` gets the last words of those that failed. */
export function jobsView(root, rows, lines) {
  const showRows = table(rows, COLUMNS);
  return (jobs) => {
    root.hidden = jobs.length === 0;
    showRows(jobs);
    const failed = jobs.filter(({ last }) => last !== null && !last.succeeded && last.last_lines !== "");
    setText(lines, failed.map((job) => `${job.name}:\n${job.last.last_lines}`).join("\n"));
    lines.hidden = failed.length === 0;
  };
}
