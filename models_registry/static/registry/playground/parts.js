// Small parts of the playground's pages: icons, buttons with one, tabs, copying.
import { $, $$, h } from "../kit.js";

/** An icon that the server drew into the page. */
export const icon = (name) => $(`[data-icon=${name}] svg`, $("#icons").content).cloneNode(true);

/** A quiet button that is an icon; its label is its name. */
export function iconButton(name, label, onclick, attributes = {}) {
  return h("button.btn.btn-sm.icon-button", { type: "button", "aria-label": label, title: label, onclick, ...attributes }, icon(name));
}

/** Tabs: arrow keys move between them. ``show`` gets the chosen one's data-tab. */
export function tabs(list, show) {
  const all = $$("[role=tab]", list);
  const choose = (tab) => {
    for (const other of all) {
      other.setAttribute("aria-selected", String(other === tab));
      other.classList.toggle("active", other === tab);
      other.tabIndex = other === tab ? 0 : -1;
    }
    show(tab.dataset.tab);
  };
  for (const tab of all) tab.addEventListener("click", () => choose(tab));
  list.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const next = all.at((all.indexOf(event.target) + step) % all.length);
    next.focus();
    choose(next);
    event.preventDefault();
  });
  choose(all.find((tab) => tab.getAttribute("aria-selected") === "true") ?? all[0]);
}
