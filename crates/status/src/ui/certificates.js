// View of certificates and TLS handshakes.
//
// app.js makes the view and passes each snapshot to it; elements.js draws. The card is hidden
// without a certificate. Those that need attention come first.

import { figure, setText, table } from "./elements.js";
import { History } from "./history.js";
import { age, count, plural, rate } from "./numbers.js";

const TONES = { valid: "", warning: "warn", invalid: "bad" };
const SOURCES = { file: "file", acme: "ACME", local: "local authority", self_signed: "self-signed" };
/** Hosts of one certificate that are named. */
const SHOWN_HOSTS = 5;
const SHOWN_ROWS = 100;

function hostsText({ hosts }) {
  if (hosts.length === 0) return "(any)";
  const more = hosts.length - SHOWN_HOSTS;
  return hosts.slice(0, SHOWN_HOSTS).join(", ") + (more > 0 ? ` and ${count(more)} more` : "");
}

function untilText({ not_after: end }) {
  const left = (Date.parse(end) - Date.now()) / 1000;
  return `${end.slice(0, 10)} (${left > 0 ? `in ${age(left)}` : "expired"})`;
}

const COLUMNS = [
  ["hosts", true, hostsText],
  ["state", true, (c) => c.state, (c) => TONES[c.state] ?? ""],
  ["valid until", true, untilText, (c) => TONES[c.state] ?? ""],
  ["issuer", true, (c) => c.issuer],
  ["source", true, (c) => c.path ?? SOURCES[c.source] ?? c.source],
  ["problem", true, (c) => c.problem ?? "", (c) => TONES[c.state] ?? ""],
];

/** The certificates in the card `root`. */
export function certificatesView(root, figures, rows, moreLine) {
  const handshakes = figure(figures, "TLS handshakes / s", "chart");
  const resumed = figure(figures, "Resumed sessions");
  const failed = figure(figures, "Failed handshakes");
  const needing = figure(figures, "Certificates");
  const showRows = table(rows, COLUMNS);
  let history = new History();

  function update(certificates, traffic, at) {
    root.hidden = certificates.total === 0;
    history.add(at, traffic.tls_handshakes, []);
    const peak = handshakes.draw(history.rates());
    const total = traffic.tls_handshakes;
    handshakes.show(rate(history.rate(5)), "", `peak ${rate(peak)} · ${count(total)} total`);
    resumed.show(total > 0 ? `${((100 * traffic.tls_resumptions) / total).toFixed(1)} %` : "–", "",
      `${count(traffic.tls_resumptions)} since start`);
    failed.show(count(traffic.tls_handshake_failures), "", "refused, broken off or too slow");
    const { invalid, warning } = certificates;
    needing.show(count(certificates.total), "", [
      invalid > 0 ? `${count(invalid)} invalid` : "",
      warning > 0 ? `${plural(warning, "warning", "warnings")}` : "",
    ].filter(Boolean).join(" · "), invalid > 0 ? "bad" : warning > 0 ? "warn" : "");
    const shown = certificates.list.slice(0, SHOWN_ROWS);
    showRows(shown);
    const more = certificates.total - shown.length;
    moreLine.hidden = more <= 0;
    setText(moreLine, `${count(more)} more: penstock certificates lists them`);
  }

  /** Starts anew: another process has its own counters. */
  function reset() {
    history = new History();
  }
  return { update, reset };
}
