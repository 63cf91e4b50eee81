// A model's settings, its name, and its removal.
import { $, act, call, confirmDialog, isFieldChanged, leaveAfter, pageData, toast } from "./kit.js";
import { reloadWith } from "./reload.js";

const row = pageData("detail");
const base = `/registry/checkpoints/${row.id}`;

// Elements for what the account may not do are missing, so they are looked up with "?.".
$("#settings")?.addEventListener("submit", (event) => {
  event.preventDefault();
  const settings = {};
  // Those alone: somebody else may have changed others since.
  for (const field of event.target.elements) {
    if (!field.name || !isFieldChanged(field)) continue;
    settings[field.name] = field.value === "" ? null : field.dataset.kind === "number" ? Number(field.value) : field.value;
  }
  if (!Object.keys(settings).length) return toast("No setting was changed.");
  act(event.submitter, async () => {
    await call("PATCH", `${base}/settings`, { settings });
    reloadWith("Saved. The settings hold from the next load on.");
  });
});

$("#rename")?.addEventListener("submit", (event) => {
  event.preventDefault();
  const name = $("#new-name").value;
  act(event.submitter, async () => {
    await call("PATCH", base, { served_model_name: name });
    reloadWith(`It is served as ${name} now.`);
  });
});

$("#delete")?.addEventListener("click", async (event) => {
  const text = row.owns_files ? "Its files are removed from this server. This can't be undone." : "It is taken out of the registry; its files stay where they are.";
  if (!(await confirmDialog(`Delete ${row.served_model_name}?`, text, "Delete it"))) return;
  act(event.target, () => leaveAfter(() => call("DELETE", base), "/models/"));
});
