// Elements of the page: figures, bars, charts and tables that are made once and updated in place.
//
// Used by all views.
//
// Invariants:
// - Data of the server is set as text, never as markup.
// - An element is changed only when its text changes, so a selection survives an update.

import { HISTORY_SECONDS } from "./history.js";

export function make(tag, className, ...children) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.append(...children);
  return element;
}

export function makeSvg(tag, attributes) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function setClass(element, name) {
  if (element.className !== name) element.className = name;
}

/** A named figure: a value, a note below it, and a bar or a chart if `extra` says so. */
export function figure(parent, name, extra) {
  const value = make("span", "value");
  const main = make("span");
  const unit = make("small");
  value.append(main, " ", unit);
  const note = make("span", "note");
  const root = make("div", "", make("span", "name", name), value);
  const bar = make("div", "bar", make("div"));
  const chart = spark();
  if (extra === "bar") root.append(bar);
  if (extra === "chart") root.append(chart.root);
  root.append(note);
  parent.append(root);
  return {
    show(text, small = "", below = "", tone = "") {
      setText(main, text);
      setText(unit, small);
      setText(note, below);
      setClass(note, `note ${tone}`);
    },
    fill(used, max, tone = "") {
      const share = max > 0 ? Math.min(1, used / max) : 0;
      bar.firstChild.style.width = `${share * 100}%`;
      setClass(bar, `bar ${tone}`);
    },
    draw: chart.draw,
  };
}

export function fullness(used, max) {
  if (max > 0 && used >= max) return "bad";
  return max > 0 && used >= max * 0.8 ? "warn" : "";
}

/** A small chart of [time, value] points over the last minutes. `draw` returns the highest value. */
function spark() {
  const area = makeSvg("polygon", {});
  const line = makeSvg("polyline", {});
  const root = makeSvg("svg", {
    class: "spark", viewBox: "0 0 300 30", preserveAspectRatio: "none", "aria-hidden": "true",
  });
  root.append(area, line);
  function draw(points) {
    if (points.length < 2) {
      line.setAttribute("points", "");
      area.setAttribute("points", "");
      return 0;
    }
    const last = points[points.length - 1][0];
    const peak = Math.max(...points.map((point) => point[1]));
    const x = (time) => (300 - ((last - time) / HISTORY_SECONDS) * 300).toFixed(1);
    const y = (value) => (28.5 - (peak > 0 ? value / peak : 0) * 27).toFixed(1);
    const text = points.map(([time, value]) => `${x(time)},${y(value)}`).join(" ");
    line.setAttribute("points", text);
    area.setAttribute("points", `${x(points[0][0])},30 ${text} 300,30`);
    return peak;
  }
  return { root, draw };
}

/** A cell that names its column where a narrow screen folds the table. */
function labelledCell(name) {
  const cell = make("td");
  cell.dataset.label = name;
  return cell;
}

/** A table with fixed columns: [heading, isText, row => text, row => tone]. */
export function table(root, columns) {
  const heads = columns.map(([name, isText]) => {
    const head = make("th", isText ? "text" : "", name);
    head.scope = "col";
    return head;
  });
  const body = make("tbody");
  root.append(make("thead", "", make("tr", "", ...heads)), body);
  return (rows) => {
    while (body.rows.length > rows.length) body.deleteRow(-1);
    rows.forEach((row, index) => {
      const line = body.rows[index] || body.appendChild(
        make("tr", "", ...columns.map(([name]) => labelledCell(name))),
      );
      columns.forEach(([, isText, text, tone], column) => {
        const cell = line.cells[column];
        setText(cell, text(row));
        setClass(cell, `${isText ? "text" : ""} ${tone ? tone(row) : ""}`.trim());
      });
    });
  };
}
