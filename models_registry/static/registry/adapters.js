// A model's LoRA adapters: register one by path, load and unload one, promote one to an alias, remove one.
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

function memoryWords(row) {
  if (row.resident && row.pinned) return `${row.model} is in memory and stays there.`;
  if (row.pinned) return `${row.model} will be in memory as soon as its base is.`;
  if (row.resident && row.num_requests) return `${row.model} leaves the memory when its requests have ended.`;
  if (row.resident) return `Another name of the same files keeps ${row.model} in memory.`;
  return `${row.model} is out of memory; the next request loads it again.`;
}

$("#adapter-region").addEventListener("click", (event) => {
  const button = event.target.closest("[data-memory]");
  if (!button) return;
  act(button, async () => {
    toast(memoryWords(await call("POST", `${base}/${button.dataset.key}/${button.dataset.memory}`)));
    await redrawParts("adapter-region");
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
