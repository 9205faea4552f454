// The banner of problems, the page's title and its icon.
//
// The server finds the problems (`problems` in /status.json): the page has no rules of its own.

import { make, setClass, setText } from "./elements.js";

const ICONS = { error: "/icon-error.svg", warning: "/icon.svg", none: "/icon.svg" };

/** The list in the banner `root`; `icon` is the page's icon. */
export function problemsView(root, icon) {
  const heading = make("strong");
  const list = make("ul");
  root.append(heading, list);

  function update(problems) {
    const errors = problems.filter(({ severity }) => severity === "error").length;
    const worst = errors > 0 ? "error" : problems.length > 0 ? "warning" : "none";
    root.hidden = problems.length === 0;
    setClass(root, worst === "error" ? "bad" : "warn");
    setText(heading, problems.length === 1 ? "1 problem" : `${problems.length} problems`);
    // Rows are kept, so that a selection survives and a screen reader reads the new ones only.
    while (list.children.length > problems.length) list.lastChild.remove();
    problems.forEach(({ text, severity }, index) => {
      const row = list.children[index] ?? list.appendChild(make("li"));
      setText(row, text);
      setClass(row, severity === "error" ? "bad" : "warn");
    });
    const title = errors > 0 ? `(${errors}) Penstock: ${problems[0].text}` : "Penstock";
    if (document.title !== title) document.title = title;
    const path = ICONS[worst];
    if (icon.getAttribute("href") !== path) icon.setAttribute("href", path);
  }
  return { update };
}
