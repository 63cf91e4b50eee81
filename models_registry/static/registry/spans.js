// Measurements of a model's memory: start one with the dialog, follow it, cancel it, delete it. The server draws the list.
import { $, $$, act, call, confirmDialog, drawnParts, onLive, pageData, submitted, toast } from "./kit.js";

const base = `/registry/checkpoints/${pageData("detail").id}/span-measurements`;
const list = () => $("#spans");
const running = () => $('#spans [data-state="running"]');
const itemOf = (id) => $$("[data-measurement]", list()).find((item) => item.dataset.measurement === id);

/** Take the list of a page that the server draws now: what people have typed elsewhere on this one stays. */
async function redrawList() {
  const fresh = (await drawnParts("spans")).get("spans");
  if (!fresh) return;
  const old = list();
  const known = new Map($$("[data-measurement]", old).map((item) => [item.dataset.measurement, item]));
  for (const item of $$("[data-measurement]", fresh)) {
    const before = known.get(item.dataset.measurement);
    // A drawn picture stays as it is, open or closed.
    if (before?.dataset.state === item.dataset.state) item.replaceWith(before);
  }
  const focused = old.contains(document.activeElement);
  old.replaceChildren(...fresh.children);
  if (focused && !old.contains(document.activeElement)) ($("#inspect") ?? $("summary", old))?.focus();
}

let followed; // the measurement whose end is told, even where it comes before the list has it

async function follow() {
  followed ??= running()?.dataset.measurement;
  if (!followed) return;
  const row = await call("GET", `/registry/span-measurements/${followed}`);
  if (row.state === "running") {
    const item = running();
    if (!item) return;
    $("[data-stage]", item).textContent = row.stage;
    $("[data-percent]", item).textContent = `${Math.round(row.progress * 100)} %`;
    $("progress", item).value = row.progress;
    return;
  }
  followed = undefined;
  await redrawList();
  if (row.state === "done") toast("The text was read.");
  else toast(row.reason, row.state === "failed" ? "bad" : "good");
}

const followSoon = onLive(["checkpoint-jobs"], follow);

list().addEventListener("click", async (event) => {
  const button = event.target.closest("button");
  const { cancel, delete: remove } = button?.dataset ?? {};
  if (cancel) {
    act(button, async () => {
      await call("POST", `/registry/span-measurements/${cancel}/cancel`);
      followSoon();
    });
  } else if (remove) {
    const confirmed = await confirmDialog("Delete this measurement?", "Its text, its figures and its picture are removed.", "Delete it");
    const found = itemOf(remove);
    if (!confirmed || !found) return;
    act(button, async () => {
      await call("DELETE", `/registry/span-measurements/${remove}`);
      await redrawList();
      $("#inspect")?.focus();
    });
  }
});

// --- dialog ------------------------------------------------------------------------------------

const dialog = $("#inspect-dialog");
const field = $("#span-text");

field?.addEventListener("input", () => {
  const size = new TextEncoder().encode(field.value).length;
  const most = Number(field.dataset.maxBytes);
  field.setCustomValidity(size > most ? `The text has ${size.toLocaleString("en")} bytes; at most ${most.toLocaleString("en")} are read.` : "");
});
$("#inspect")?.addEventListener("click", () => dialog.showModal());
$("#inspect-close")?.addEventListener("click", () => dialog.close());

$("#inspect-form")?.addEventListener("submit", (event) =>
  submitted(event, $("#inspect-error"), async () => {
    const row = await call("POST", base, {
      ...(field ? { text: field.value } : {}),
      max_tokens: Number($("#span-tokens").value),
      max_seconds: Number($("#span-seconds").value),
    });
    followed = row.id;
    dialog.close();
    await redrawList();
    list().scrollIntoView({ block: "nearest" });
    followSoon();
  }),
);
