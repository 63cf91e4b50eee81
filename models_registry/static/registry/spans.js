// Measurements of a model's memory: start one with the dialog, follow it, cancel it, delete it. The server draws the list.
import { $, $$, act, call, confirmDialog, errorOf, onLive, pageData, submitted, toast } from "./kit.js";

const base = `/registry/checkpoints/${pageData("detail").id}/span-measurements`;
const list = () => $("#spans");
const running = () => $('#spans [data-state="running"]');
const itemOf = (id) => $$("[data-measurement]", list()).find((item) => item.dataset.measurement === id);

/** Take the list of a page that the server draws now: what people have typed elsewhere on this one stays. */
async function redrawList() {
  const response = await fetch(location.pathname + location.search, { credentials: "same-origin" });
  const text = await response.text();
  if (!response.ok) throw errorOf(response.status, text);
  const fresh = new DOMParser().parseFromString(text, "text/html").getElementById("spans");
  if (!fresh) throw errorOf(response.status, "");
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

async function follow() {
  const item = running();
  if (!item) return;
  const row = await call("GET", `/registry/span-measurements/${item.dataset.measurement}`);
  if (row.state === "running") {
    $("[data-stage]", item).textContent = row.stage;
    $("[data-percent]", item).textContent = `${Math.round(row.progress * 100)} %`;
    $("progress", item).value = row.progress;
    return;
  }
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
    await call("POST", base, {
      ...(field ? { text: field.value } : {}),
      max_tokens: Number($("#span-tokens").value),
      max_seconds: Number($("#span-seconds").value),
    });
    dialog.close();
    await redrawList();
    list().scrollIntoView({ block: "nearest" });
    followSoon();
  }),
);
