// A training run: follow it, stop it, forget it, promote a checkpoint. The server draws curve, table and samples.
import { $, act, call, leaveAfter, pageData, poll, redrawParts, submitted } from "./kit.js";
import { promotions } from "./promote.js";
import { reloadWith, showSaid } from "./reload.js";
import { changedOptions } from "./run_options.js";

const detail = pageData("detail");
const base = `/registry/runs/${detail.id}`;
const PARTS = ["run-actions", "run-notes", "run-curve", "run-steps", "run-samples"];

let drawn = detail;
showSaid();

async function refresh() {
  const fresh = await call("GET", `${base}/state`);
  if (fresh.version !== drawn.version || fresh.measuring !== drawn.measuring) {
    await redrawParts(...PARTS);
    drawn = fresh;
  }
  const progress = $("[data-progress]");
  if (progress && fresh.measuring) progress.textContent = `being measured, ${Math.round(fresh.progress * 100)} %`;
}

const refreshSoon = poll(refresh, 2000);

document.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  const action = button?.dataset.act;
  if (action === "forget") $("#forget-dialog").showModal();
  else if (action === "measure") $("#measure-dialog").showModal();
  else if (action) {
    act(button, async () => {
      await call("POST", `${base}/${action}`);
      refreshSoon();
    });
  }
});

promotions(() => redrawParts(...PARTS));

// --- how it is measured ------------------------------------------------------------------------

$("#measure-close")?.addEventListener("click", () => $("#measure-dialog").close());
$("#measure-form")?.addEventListener("submit", (event) =>
  submitted(event, $("#measure-error"), async () => {
    const changes = changedOptions(event.target);
    if (!Object.keys(changes).length) return $("#measure-dialog").close();
    await call("PATCH", base, changes);
    reloadWith("Checkpoints are measured so from now on.");
  }),
);

// --- forget ------------------------------------------------------------------------------------

$("#forget-close").addEventListener("click", () => $("#forget-dialog").close());
$("#forget-form").addEventListener("submit", (event) =>
  submitted(event, $("#forget-error"), () =>
    leaveAfter(() => call("DELETE", base, { with_models: $("#forget-models").checked }), "/runs/"),
  ),
);
