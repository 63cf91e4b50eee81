// The list of models: filters while typing, sorting, and ticks to compare. The server draws the list.
import { filterList } from "./filters.js";
import { $, $$ } from "./kit.js";

const region = $("#models");
const show = filterList($("#filters"), region, "models");
region.addEventListener("click", (event) => {
  const link = event.target.closest("a[data-sort]");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  show(link.getAttribute("href"));
});

// Ticks of models to compare outlive the regions that are drawn anew.
const picked = new Set();
document.body.addEventListener("change", ({ target }) => {
  if (target.name === "pick") picked[target.checked ? "add" : "delete"](target.value);
});
region.addEventListener("htmx:afterSettle", () => {
  for (const box of $$("[name=pick]")) box.checked = picked.has(box.value);
  $("#found").textContent = $("#found-now").textContent;
});
