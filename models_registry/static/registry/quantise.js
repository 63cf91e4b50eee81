// Quantisations of a model: start one with the dialog; the server draws the list, this says how one ended.
import { $, $$, act, call, pageData, submitted, toast } from "./kit.js";
import { reloadWith } from "./reload.js";

const detail = pageData("detail");
const base = `/registry/checkpoints/${detail.id}/quantisations`;

const states = () => new Map($$("[data-quantisation]").map((item) => [item.dataset.quantisation, item.dataset]));
let before = states();
const started = new Set(); // from here: one may end before the list has it
document.body.addEventListener("htmx:afterSettle", () => {
  const now = states();
  for (const [id, { state, name, reason }] of now) {
    if (state === "running" || !(started.delete(id) || before.get(id)?.state === "running")) continue;
    if (state === "done") toast(`${name} is registered.`);
    else toast(`${name}: ${reason}`, state === "failed" ? "bad" : "good");
  }
  before = now;
});

$("#refresh")?.addEventListener("click", (event) =>
  act(event.target, async () => {
    await call("POST", `/registry/checkpoints/${detail.id}/refresh`);
    reloadWith("The files were inspected again.");
  }),
);

const dialog = $("#quantise-dialog");
const open = () => dialog?.showModal();
$("#quantise")?.addEventListener("click", (event) => {
  if (!dialog) return;
  event.preventDefault();
  open();
});
if (location.hash === "#quantise") {
  if (dialog) open();
  else toast("This model can't be quantised here.", "bad");
}
$("#quantise-close")?.addEventListener("click", () => dialog.close());
if (dialog) $("#quantise-unit").value = detail.size_bytes < 2e9 ? "1000000" : "1000000000";

// The beginning of the chosen file as text, or nothing; a character that the cut goes through is left out.
async function chosenText() {
  const input = $("#quantise-text");
  const file = input?.files[0];
  if (!file) return {};
  const bytes = await file.slice(0, Number(input.dataset.maxBytes)).arrayBuffer();
  try {
    return { text: new TextDecoder("utf-8", { fatal: true }).decode(bytes, { stream: bytes.byteLength < file.size }) };
  } catch {
    throw new Error(`${file.name} is no text in UTF-8; choose another file, or none.`);
  }
}

$("#quantise-form")?.addEventListener("submit", (event) =>
  submitted(event, $("#quantise-error"), async () => {
    const [size, kl] = [$("#quantise-size").value, $("#quantise-kl").value];
    const row = await call("POST", base, {
      served_model_name: $("#quantise-name").value.trim(),
      max_bytes: size === "" ? null : Math.round(Number(size) * Number($("#quantise-unit").value)),
      max_kl: kl === "" ? null : Number(kl),
      ...(await chosenText()),
    });
    started.add(row.id);
    dialog.close();
    document.body.dispatchEvent(new CustomEvent("live:checkpoint-jobs"));
    toast(`${row.served_model_name} is being made.`);
  }),
);
