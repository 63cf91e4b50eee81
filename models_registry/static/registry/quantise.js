// Quantisations of a model: start one with the dialog, follow it, cancel it.
import { $, act, ago, bytes, call, confirmDialog, h, modelUrl, pageData, poll, redraw, stateMark, submitted, toast } from "./kit.js";

const detail = pageData("detail");
const base = `/registry/checkpoints/${detail.id}/quantisations`;
const canQuantise = pageData("can-quantise");
let rows = pageData("quantisation-rows");
let drawn = null; // what the list shows, so that polling doesn't undo a selection

// --- list --------------------------------------------------------------------------------------

const limitsOf = (row) => [row.max_bytes && `at most ${bytes(row.max_bytes)}`, row.max_kl && `KL at most ${row.max_kl} nats`].filter(Boolean).join(", ");

async function cancel(row) {
  const confirmed = await confirmDialog(`Cancel ${row.served_model_name}?`, "What has been measured so far is lost.", "Cancel it");
  const button = $(`[data-key="cancel-${row.id}"]`); // polling may have drawn another one meanwhile
  button?.focus();
  if (!confirmed || !button) return;
  act(button, async () => {
    await call("DELETE", `/registry/quantisations/${row.id}`);
    refreshSoon();
  });
}

function running(row) {
  const percent = `${Math.round(row.progress * 100)} %`;
  return h(
    "div.stack.tight",
    {},
    h("div.spread.small.flex-nowrap", {}, h("span", {}, row.stage || "starting"), h("span.num.text-nowrap", {}, percent)),
    h("progress", { max: 1, value: row.progress, "aria-label": `${row.served_model_name}, share that is done` }),
    canQuantise && h("button.btn.btn-link.btn-sm", { type: "button", "data-key": `cancel-${row.id}`, "aria-label": `Cancel ${row.served_model_name}`, onclick: () => cancel(row) }, "Cancel"),
  );
}

function item(row) {
  const name = row.checkpoint ? h("a.name-link", { href: modelUrl({ id: row.checkpoint }), "data-key": row.id }, row.served_model_name) : h("b", {}, row.served_model_name);
  return h(
    "li",
    {},
    h("div.spread", {}, h("span.hstack.gap-2.flex-wrap.text-break", {}, stateMark(row.state), name), h("span.small.muted", {}, `${limitsOf(row)} · started ${ago(row.created_at)}`)),
    row.state === "running" && running(row),
    row.state === "done" && !row.checkpoint && h("p.small.muted", {}, "The model was deleted."),
    row.reason && h("p.small", {}, row.reason),
  );
}

function draw() {
  const shown = JSON.stringify(rows.map((row) => [row, ago(row.created_at)]));
  if (shown === drawn) return;
  drawn = shown;
  $("#quantisations-card").hidden = rows.length === 0;
  redraw($("#quantisations"), rows.map(item));
}

function take(fresh) {
  for (const row of fresh) {
    const before = rows.find((each) => each.id === row.id);
    if (before?.state !== "running" || row.state === "running") continue;
    if (row.state === "done") toast(`${row.served_model_name} is registered.`);
    else toast(`${row.served_model_name}: ${row.reason}`, row.state === "failed" ? "bad" : "good");
  }
  rows = fresh;
  draw();
}

draw();
const refreshSoon = poll(async () => take(await call("GET", base)), 2000);

// --- dialog ------------------------------------------------------------------------------------

const dialog = $("#quantise-dialog");

$("#quantise")?.addEventListener("click", () => dialog.showModal());
$("#quantise-close")?.addEventListener("click", () => dialog.close());
if (dialog) $("#quantise-unit").value = detail.size_bytes < 2e9 ? "1000000" : "1000000000";

$("#quantise-form")?.addEventListener("submit", (event) =>
  submitted(event, $("#quantise-error"), async () => {
    const [size, kl] = [$("#quantise-size").value, $("#quantise-kl").value];
    const row = await call("POST", base, {
      served_model_name: $("#quantise-name").value.trim(),
      max_bytes: size === "" ? null : Math.round(Number(size) * Number($("#quantise-unit").value)),
      max_kl: kl === "" ? null : Number(kl),
    });
    dialog.close();
    rows = [row, ...rows];
    draw();
    $("#quantisations-card").scrollIntoView({ block: "nearest" });
    toast(`${row.served_model_name} is being made.`);
  }),
);
