// A model's LoRA adapters: register one by path, promote one to an alias, remove one.
import { $, act, call, confirmDialog, pageData, redrawParts, toast } from "./kit.js";
import { promotions } from "./promote.js";

const base = `/registry/checkpoints/${pageData("detail").id}/adapters`;

// The form is missing for accounts that may not register.
$("#add-adapter")?.addEventListener("submit", (event) => {
  event.preventDefault();
  const form = event.target;
  const name = $("#adapter-name").value;
  const body = { path: $("#adapter-path").value };
  if (name) body.name = name;
  act(event.submitter, async () => {
    const row = await call("POST", base, body);
    form.reset();
    await redrawParts("adapter-region");
    toast(`Requests may name ${row.model} now.`);
  });
});

$("#adapter-region").addEventListener("click", async (event) => {
  const button = event.target.closest("[data-remove]");
  if (!button) return;
  const text = "Requests that name it are refused from now on; its files stay where they are.";
  if (!(await confirmDialog(`Remove ${button.dataset.name}?`, text, "Remove it"))) return;
  act(button, async () => {
    await call("DELETE", `${base}/${button.dataset.remove}`);
    await redrawParts("adapter-region");
  });
});

promotions(() => redrawParts("adapter-region"));
