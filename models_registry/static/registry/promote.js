// The dialog that points an alias to a checkpoint: every button with data-promote opens it.
import { $, call, submitted, toast } from "./kit.js";

let chosen = null;

/** Let the dialog work; calls done() after a promotion. */
export function promotions(done) {
  const dialog = $("#promote-dialog");
  if (!dialog) return;
  document.addEventListener("click", (event) => {
    const { promote, name } = event.target.closest("button")?.dataset ?? {};
    if (!promote) return;
    chosen = { id: promote, name };
    $("#promote-title").textContent = `Promote ${name}`;
    $("#promote-error").hidden = true;
    dialog.showModal();
    $("#promote-alias").select();
  });
  $("#promote-close").addEventListener("click", () => dialog.close());
  $("#promote-form").addEventListener("submit", (event) =>
    submitted(event, $("#promote-error"), async () => {
      const revision = await call("POST", `/registry/checkpoints/${chosen.id}/promote`, { alias: $("#promote-alias").value });
      dialog.close();
      toast(`${revision.alias} means ${chosen.name} now (revision ${revision.number}).`);
      await done();
    }),
  );
}
