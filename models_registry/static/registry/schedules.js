// The form of a schedule: fields of the chosen action alone, and the reader's own time zone in a new one.
import { $, $$ } from "./kit.js";

const form = $("#schedule-form");

function showFields() {
  const isBatch = $("#action").value === "batch";
  for (const part of $$(".of-batch", form)) part.hidden = !isBatch;
  for (const part of $$(".of-model", form)) part.hidden = isBatch;
}

$("#action").addEventListener("change", showFields);
showFields();
if ("isNew" in form.dataset) {
  const own = Intl.DateTimeFormat().resolvedOptions().timeZone;
  if ($$("#zones option").some((option) => option.value === own)) $("#time_zone").value = own;
}
// Drawn for the zone of the server at first; browsers may also keep fields over a reload.
addEventListener("load", () => $("#preview").dispatchEvent(new CustomEvent("again")));
