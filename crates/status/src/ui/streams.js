// View of the streaming hub: connections, published messages and memory.
//
// app.js makes the view and passes each snapshot to it; elements.js draws. The card is hidden until
// the hub had a connection or a message.

import { figure, fullness, setClass, setText } from "./elements.js";
import { History } from "./history.js";
import { bytes, count, plural, rate } from "./numbers.js";
import { showErrors } from "./views.js";

/** The hub in the card `root`. */
export function hubView(root, figures, clusterLine) {
  const connections = figure(figures, "Connections", "bar");
  const opened = figure(figures, "Opened / s", "chart");
  const published = figure(figures, "Published / s", "chart");
  const delivered = figure(figures, "Delivered / s", "chart");
  const channels = figure(figures, "Channels", "bar");
  const each = figure(figures, "Memory per stream");
  const backlog = figure(figures, "Backlog", "bar");
  const history = figure(figures, "History", "bar");
  const dropped = figure(figures, "Dropped (slow clients)");
  let histories = newHistories();

  function update(hub, at) {
    const { counters } = hub;
    root.hidden = hub.connections.used + counters.opened + counters.published === 0;
    // WebSockets of the hub, and connections being accepted.
    const others = hub.connections.used - hub.streams - hub.long_polls;
    show(connections, hub.connections, count, [
      plural(hub.streams, "stream", "streams"), plural(hub.long_polls, "long poll", "long polls"),
      others > 0 ? plural(others, "other", "others") : "",
    ].filter(Boolean).join(" · "));
    showRate(opened, histories.opened, at, counters.opened);
    showRate(published, histories.published, at, counters.published);
    showRate(delivered, histories.delivered, at, counters.delivered);
    show(channels, hub.channels, count, "with subscribers or a history");
    each.show(hub.bytes_per_stream === null ? "–" : bytes(hub.bytes_per_stream), "",
      `${bytes(hub.stream_bytes)} in total, without kernel memory`);
    show(backlog, hub.backlog_bytes, bytes, "");
    show(history, hub.history_bytes, bytes, "");
    // A full history is normal: no alarm.
    history.fill(hub.history_bytes.used, hub.history_bytes.max);
    showCluster(clusterLine, hub.cluster);
    showErrors(dropped, [["messages", counters.dropped], ["streams closed", counters.closed_slow]]);
  }

  /** Starts anew: another process has its own counters. */
  function reset() {
    histories = newHistories();
  }
  return { update, reset };
}

const newHistories = () => ({
  opened: new History(), published: new History(), delivered: new History(),
});

function show(target, use, text, note) {
  target.show(text(use.used), `of ${text(use.max)}`, note);
  target.fill(use.used, use.max, fullness(use.used, use.max));
}

/** The servers that share the hub over Redis. */
function showCluster(line, cluster) {
  line.hidden = cluster === null;
  if (cluster === null) return;
  const { streams } = cluster.totals;
  const parts = cluster.connected && !cluster.standalone
    ? [`${plural(cluster.servers, "server", "servers")} over ${cluster.address}`,
      streams === undefined ? "" : `${plural(streams, "stream", "streams")} on all servers`]
    : [`${cluster.address} does not answer. Messages reach only subscribers of this server.`];
  if (cluster.queued > 0) parts.push(`${plural(cluster.queued, "message", "messages")} queued for other servers`);
  if (cluster.lost > 0) parts.push(`${plural(cluster.lost, "message", "messages")} lost for other servers`);
  setText(line, parts.filter(Boolean).join(" · "));
  setClass(line, cluster.connected && !cluster.standalone && cluster.lost === 0 ? "quiet" : "warn");
}

function showRate(target, history, at, total) {
  history.add(at, total, []);
  const peak = target.draw(history.rates());
  target.show(rate(history.rate(5)), "", `peak ${rate(peak)} · ${count(total)} total`);
}
