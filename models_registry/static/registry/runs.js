// The list of training runs, and the dialog that watches another directory.
import { $, call, poll, redrawParts, submitted } from "./kit.js";

poll(() => redrawParts("runs"), 5000);

const dialog = $("#watch-dialog");
$("#watch")?.addEventListener("click", () => dialog.showModal());
$("#watch-close")?.addEventListener("click", () => dialog.close());

$("#watch-form")?.addEventListener("submit", (event) =>
  submitted(event, $("#watch-error"), async () => {
    const run = await call("POST", "/registry/runs", {
      directory: $("#run-directory").value,
      name: $("#run-name").value,
      prompts: $("#run-prompts").value.split("\n").filter((line) => line.trim()),
      max_tokens: Number($("#run-max-tokens").value),
      temperature: Number($("#run-temperature").value),
      seed: Number($("#run-seed").value),
      text: $("#run-text").value,
      loss_tokens: Number($("#run-loss-tokens").value),
      max_seconds: Number($("#run-seconds").value),
    });
    location.href = `/runs/${run.id}/`;
  }),
);
