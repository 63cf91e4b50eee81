// A training run: follow it, stop it, forget it, promote a checkpoint. The server draws curve, table and samples.
import { $, act, call, pageData, poll, redrawParts, submitted, toast } from "./kit.js";

const detail = pageData("detail");
const base = `/registry/runs/${detail.id}`;
const PARTS = ["run-actions", "run-notes", "run-curve", "run-steps", "run-samples"];

/** What the page shows of a run: without the times and the progress, which change all the time. */
function shown({ looked_at, progress, steps, ...rest }) {
  return JSON.stringify([rest, steps.map(({ samples, ...step }) => step)]);
}

let drawn = shown(detail);

async function refresh() {
  const fresh = await call("GET", base);
  if (shown(fresh) !== drawn) {
    await redrawParts(...PARTS);
    drawn = shown(fresh);
  }
  const progress = $("[data-progress]");
  if (progress && fresh.measuring) progress.textContent = `being measured, ${Math.round(fresh.progress * 100)} %`;
}

const refreshSoon = poll(refresh, 2000);

document.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  const { act: action, promote, name } = button?.dataset ?? {};
  if (action === "forget") $("#forget-dialog").showModal();
  else if (action) {
    act(button, async () => {
      await call("POST", `${base}/${action}`);
      refreshSoon();
    });
  } else if (promote) openPromotion(promote, name);
});

// --- promote -----------------------------------------------------------------------------------

let chosen = null;

function openPromotion(id, name) {
  chosen = { id, name };
  $("#promote-title").textContent = `Promote ${name}`;
  $("#promote-error").hidden = true;
  $("#promote-dialog").showModal();
  $("#promote-alias").select();
}

$("#promote-close").addEventListener("click", () => $("#promote-dialog").close());
$("#promote-form").addEventListener("submit", (event) =>
  submitted(event, $("#promote-error"), async () => {
    const revision = await call("POST", `/registry/checkpoints/${chosen.id}/promote`, { alias: $("#promote-alias").value });
    $("#promote-dialog").close();
    toast(`${revision.alias} means ${chosen.name} now (revision ${revision.number}).`);
    await redrawParts(...PARTS);
  }),
);

// --- forget ------------------------------------------------------------------------------------

$("#forget-close").addEventListener("click", () => $("#forget-dialog").close());
$("#forget-form").addEventListener("submit", (event) =>
  submitted(event, $("#forget-error"), async () => {
    await call("DELETE", base, { with_models: $("#forget-models").checked });
    location.href = "/runs/";
  }),
);
