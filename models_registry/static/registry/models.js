// The list of models: filters while typing, sorting, pages, and ticks to compare. The server draws the list.
import { filterList } from "./filters.js";
import { $, $$, h } from "./kit.js";

const region = $("#models");
const show = filterList($("#filters"), region, "models", "offset");
region.addEventListener("click", (event) => {
  const link = event.target.closest("a[data-sort], a[data-page]");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  show(link.getAttribute("href"));
  if ("page" in link.dataset) scrollTo(0, 0);
});

// Ticks of models to compare outlive the regions that are drawn anew, and count for rows that aren't shown as well.
const picked = new Set();
document.body.addEventListener("change", ({ target }) => {
  if (target.name === "pick") picked[target.checked ? "add" : "delete"](target.value);
});
region.addEventListener("htmx:afterSettle", () => {
  const boxes = $$("#models [name=pick]");
  for (const box of boxes) box.checked = picked.has(box.value);
  const elsewhere = [...picked].filter((value) => boxes.every((box) => box.value !== value));
  $("#compare").replaceChildren(...elsewhere.map((value) => h("input", { type: "hidden", name: "pick", value })));
  $("#found").textContent = $("#found-now").textContent;
});
