// Shows the values of a report's charts (html.rs) under the pointer, and by arrow keys under the focus.
// Each figure carries its values as JSON: the plotting area and, for each value, the pixel where it is
// drawn, whose it is, where it was measured, and what it is. Values are shown as text, never as markup.
"use strict";
for (const figure of document.querySelectorAll("figure")) {
  const chart = figure.querySelector(".chart");
  const { width, height } = chart.querySelector("svg").viewBox.baseVal;
  const { area, spots } = JSON.parse(figure.querySelector("script").textContent);
  const add = (name) => {
    const element = document.createElement("div");
    element.className = name;
    element.hidden = true;
    return chart.appendChild(element);
  };
  const across = add("cross"), upright = add("cross"), ring = add("ring"), tip = add("tip");
  tip.setAttribute("role", "status");
  let shown = -1;

  const hide = () => {
    shown = -1;
    for (const element of [across, upright, ring, tip]) element.hidden = true;
  };

  // All curves at the same place, when there are few; the one that is meant comes first.
  const words = (spot) => {
    const [, , series, place, value] = spot;
    const lines = [place, `${series}: ${value}`];
    const others = spots.filter((other) => other[0] === spot[0] && other !== spot);
    if (others.length < 6) lines.push(...others.map((other) => `${other[2]}: ${other[4]}`));
    return lines.filter(Boolean).join("\n");
  };

  const show = (index) => {
    shown = index;
    const spot = spots[index], scale = chart.clientWidth / width;
    const [left, top, right, bottom] = area.map((at) => at * scale);
    const x = spot[0] * scale, y = spot[1] * scale;
    for (const element of [across, upright, ring, tip]) element.hidden = false;
    Object.assign(across.style, { left: `${left}px`, top: `${y}px`, width: `${right - left}px`, height: "1px" });
    Object.assign(upright.style, { left: `${x}px`, top: `${top}px`, width: "1px", height: `${bottom - top}px` });
    Object.assign(ring.style, { left: `${x}px`, top: `${y}px` });
    tip.textContent = words(spot);
    // Measured at the left edge, where it has all the room that it may take.
    Object.assign(tip.style, { left: "0px", top: "0px" });
    const room = chart.clientWidth - tip.offsetWidth;
    const beside = x + 14 <= room ? x + 14 : x - 14 - tip.offsetWidth;
    const above = y - tip.offsetHeight - 14;
    tip.style.left = `${Math.max(0, Math.min(beside, room))}px`;
    tip.style.top = `${above >= 0 ? above : Math.min(y + 14, height * scale - tip.offsetHeight)}px`;
  };

  const nearest = (x, y) => {
    let best = -1, least = Infinity;
    spots.forEach((spot, index) => {
      const distance = Math.hypot(spot[0] - x, spot[1] - y);
      if (distance < least) [best, least] = [index, distance];
    });
    return best;
  };

  chart.addEventListener("pointermove", (event) => {
    const box = chart.getBoundingClientRect(), scale = box.width / width;
    const index = nearest((event.clientX - box.left) / scale, (event.clientY - box.top) / scale);
    if (index >= 0) show(index);
  });
  chart.addEventListener("pointerleave", hide);
  figure.addEventListener("blur", hide);
  figure.addEventListener("keydown", (event) => {
    if (event.target !== figure || !spots.length) return;
    const sideways = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const upwards = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (event.key === "Escape") return hide();
    if (sideways === undefined && upwards === undefined) return;
    event.preventDefault();
    if (shown < 0) return show(0);
    if (sideways !== undefined) return show((shown + sideways + spots.length) % spots.length);
    // Up and down: to the nearest value that lies in that direction at about the same place.
    const [x, y] = spots[shown];
    const further = spots
      .map((spot, index) => [Math.abs(spot[0] - x) * 4 + Math.abs(spot[1] - y), index, spot[1] - y])
      .filter(([, , step]) => step * upwards > 0)
      .sort((a, b) => a[0] - b[0]);
    if (further.length) show(further[0][1]);
  });
}
