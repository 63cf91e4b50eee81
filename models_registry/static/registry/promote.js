// The dialog that points an alias to a checkpoint or an adapter: every button with data-promote opens it.
import { $, call, submitted, toast } from "./kit.js";

let chosen = null;

/** Let the dialog work; calls done() after a promotion. */
export function promotions(done) {
  const dialog = $("#promote-dialog");
  if (!dialog) return;
  document.addEventListener("click", (event) => {
    const { promote, adapter, name } = event.target.closest("button")?.dataset ?? {};
    if (!promote) return;
    chosen = { id: promote, adapter, name };
    $("#promote-title").textContent = `Promote ${name}`;
    $("#promote-error").hidden = true;
    dialog.showModal();
    $("#promote-alias").select();
  });
  $("#promote-close").addEventListener("click", () => dialog.close());
  $("#promote-form").addEventListener("submit", (event) =>
    submitted(event, $("#promote-error"), async () => {
      const body = { alias: $("#promote-alias").value };
      if (chosen.adapter) body.adapter = chosen.adapter;
      const revision = await call("POST", `/registry/checkpoints/${chosen.id}/promote`, body);
      dialog.close();
      toast(`${revision.alias} means ${chosen.name} now (revision ${revision.number}).`);
      await done();
    }),
  );
}
