// The list of training runs, and the dialog that watches another directory.
import { $, call, poll, redrawParts, submitted } from "./kit.js";
import { runOptions } from "./run_options.js";

poll(() => redrawParts("runs"), 5000);

const dialog = $("#watch-dialog");
$("#watch")?.addEventListener("click", () => dialog.showModal());
$("#watch-close")?.addEventListener("click", () => dialog.close());

$("#watch-form")?.addEventListener("submit", (event) =>
  submitted(event, $("#watch-error"), async () => {
    const run = await call("POST", "/registry/runs", {
      directory: $("#run-directory").value,
      name: $("#run-name").value,
      ...runOptions($("#watch-form")),
    });
    location.href = `/runs/${run.id}/`;
  }),
);
