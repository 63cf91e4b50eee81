// Searching the list of models while typing; without scripts the same field asks the server.
import { $, $$ } from "./kit.js";

const field = $("#search");

function filter() {
  const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
  const rows = $$("#models tbody tr");
  let shown = 0;
  for (const row of rows) {
    const matches = words.every((word) => row.dataset.text.includes(word));
    row.hidden = !matches;
    shown += matches;
  }
  $("#found").textContent = words.length ? `${shown} of ${rows.length}` : "";
  $("#no-match").hidden = shown > 0;
}

field.addEventListener("input", filter);
document.body.addEventListener("htmx:afterSettle", filter);

// Ticks of models to compare outlive the regions that are drawn anew.
const picked = new Set();
document.body.addEventListener("change", ({ target }) => {
  if (target.name === "pick") picked[target.checked ? "add" : "delete"](target.value);
});
document.body.addEventListener("htmx:afterSettle", () => {
  for (const box of $$("[name=pick]")) box.checked = picked.has(box.value);
});
field.form.addEventListener("submit", (event) => event.preventDefault());
if (field.value) filter();
