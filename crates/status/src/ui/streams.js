// What the page shows of the hub: what is held open, what was published, and what both cost.
//
// app.js makes the view and hands it each snapshot; elements.js draws. The card is there once anything
// was held or published.

import { figure, fullness, setClass, setText } from "./elements.js";
import { History } from "./history.js";
import { bytes, count, plural, rate } from "./numbers.js";
import { showTroubles } from "./views.js";

/** The hub in one card, which `root` is. */
export function hubView(root, figures, nodesLine) {
  const held = figure(figures, "Held", "bar");
  const opened = figure(figures, "Opened / s", "chart");
  const published = figure(figures, "Published / s", "chart");
  const delivered = figure(figures, "Delivered / s", "chart");
  const channels = figure(figures, "Channels", "bar");
  const each = figure(figures, "Memory per stream");
  const backlog = figure(figures, "Waiting for slow ones", "bar");
  const history = figure(figures, "History", "bar");
  const lost = figure(figures, "Lost to slowness");
  let histories = fresh();

  function update(hub, at) {
    const { counters } = hub;
    root.hidden = hub.held.used + counters.opened + counters.published === 0;
    // WebSockets that the hub speaks to, and what is on its way.
    const others = hub.held.used - hub.streams - hub.polls;
    show(held, hub.held, count, [
      plural(hub.streams, "stream", "streams"), plural(hub.polls, "poll", "polls"),
      others > 0 ? plural(others, "other", "others") : "",
    ].filter(Boolean).join(" · "));
    pace(opened, histories.opened, at, counters.opened);
    pace(published, histories.published, at, counters.published);
    pace(delivered, histories.delivered, at, counters.delivered);
    show(channels, hub.channels, count, "with subscribers or a history");
    each.show(hub.stream_bytes_each === null ? "–" : bytes(hub.stream_bytes_each), "",
      `${bytes(hub.stream_bytes)} in all, the kernel's apart`);
    show(backlog, hub.backlog_bytes, bytes, "");
    show(history, hub.history_bytes, bytes, "");
    // A full history is what it is for: no alarm.
    history.fill(hub.history_bytes.used, hub.history_bytes.max);
    showNodes(nodesLine, hub.nodes);
    showTroubles(lost, [["messages", counters.dropped], ["streams closed", counters.closed_slow]]);
  }

  /** Another process: its counters have nothing to do with those before. */
  function forget() {
    histories = fresh();
  }
  return { update, forget };
}

const fresh = () => ({
  opened: new History(), published: new History(), delivered: new History(),
});

function show(target, use, text, note) {
  target.show(text(use.used), `of ${text(use.max)}`, note);
  target.fill(use.used, use.max, fullness(use.used, use.max));
}

/** The other servers, and how this one stands with them. */
function showNodes(line, nodes) {
  line.hidden = nodes === null;
  if (nodes === null) return;
  const { streams } = nodes.sums;
  const parts = nodes.connected && !nodes.alone
    ? [`${plural(nodes.servers, "server", "servers")} over ${nodes.address}`,
      streams === undefined ? "" : `${plural(streams, "stream", "streams")} on all of them`]
    : [`${nodes.address} does not answer: what is published here reaches only who listens here, for now`];
  if (nodes.waiting > 0) parts.push(`${count(nodes.waiting)} to be told to the others`);
  if (nodes.lost > 0) parts.push(`${count(nodes.lost)} lost for the others`);
  setText(line, parts.filter(Boolean).join(" · "));
  setClass(line, nodes.connected && !nodes.alone && nodes.lost === 0 ? "quiet" : "warn");
}

function pace(target, history, at, total) {
  history.add(at, total, []);
  const peak = target.draw(history.rates());
  target.show(rate(history.rate(5)), "", `peak ${rate(peak)} · ${count(total)} in all`);
}
