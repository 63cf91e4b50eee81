// Small parts of the playground's pages: icons, buttons with one, tabs, copying.
import { $, $$, h, toast } from "../kit.js";

/** An icon that the server drew into the page. */
export const icon = (name) => $(`[data-icon=${name}] svg`, $("#icons").content).cloneNode(true);

/** A quiet button that is an icon; its label is its name. */
export function iconButton(name, label, onclick, attributes = {}) {
  return h("button.btn.btn-sm.icon-button", { type: "button", "aria-label": label, title: label, onclick, ...attributes }, icon(name));
}

export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return toast("Copied.");
  } catch {
    // Clipboards are for secure origins; the old way works on all of them.
    const place = h("textarea.visually-hidden", { value: text, "aria-hidden": "true", tabindex: -1 });
    const focused = document.activeElement;
    document.body.append(place);
    place.select();
    const done = document.execCommand("copy");
    place.remove();
    focused?.focus();
    toast(done ? "Copied." : "The browser refuses to copy.", done ? "good" : "warn");
  }
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
