// The chat template of a model: check it while it is typed, see a sample conversation, set it, restore the model's own.
import { $, act, call, confirmDialog, h, pageData, submitted, toast } from "./kit.js";
import { reloadWith } from "./reload.js";

const base = `/registry/checkpoints/${pageData("detail").id}`;
const source = $("#template-source");
let newest = 0; // check that was asked for
let timer;

function showCheck({ problems, preview }) {
  const errors = problems.filter(({ level }) => level === "error").length;
  const warnings = problems.length - errors;
  const counted = (number, word) => `${number} ${word}${number === 1 ? "" : "s"}`;
  $("#template-verdict").textContent = errors
    ? `It can't be used: ${counted(errors, "error")}${warnings ? ` and ${counted(warnings, "warning")}` : ""}.`
    : warnings
      ? `It can be used, with ${counted(warnings, "warning")}.`
      : "It can be used; no problems were found.";
  const list = $("#template-problems");
  list.hidden = problems.length === 0;
  list.className = `note ${errors ? "bad" : "warn"}`;
  $("ul", list).replaceChildren(...problems.map(({ level, line, message }) => h("li", {}, h("b", {}, `${level}: `), line ? `line ${line}: ${message}` : message)));
  $("#template-sample").hidden = preview === null;
  $("#template-sample pre").textContent = preview ?? "";
  $("#template-result").hidden = false;
}

/** Check the template as it is now; what an older check says isn't shown any more. */
async function check() {
  clearTimeout(timer);
  const number = ++newest;
  const found = await call("POST", `${base}/chat-template/preview`, { template: source.value });
  if (number === newest) showCheck(found);
}

source?.addEventListener("input", () => {
  clearTimeout(timer);
  if (source.validity.valid) timer = setTimeout(() => check().catch((error) => toast(error.message, "bad")), 300);
});

$("#template-preview")?.addEventListener("click", (event) => {
  if (source.reportValidity()) act(event.target, check);
});

$("#template-form")?.addEventListener("submit", (event) =>
  submitted(event, $("#template-error"), async () => {
    await call("POST", `${base}/overrides`, { fact: "chat_template", value: source.value });
    reloadWith("The chat template is set. A loaded model keeps the old one until its next load.");
  }),
);

$("#template-clear")?.addEventListener("click", async (event) => {
  if (!(await confirmDialog("Take the chat template away?", "The history keeps that it was set, the text itself is gone from this page.", "Take it away"))) return;
  act(event.target, async () => {
    await call("DELETE", `${base}/overrides/chat_template`);
    reloadWith("The chat template is taken away.");
  });
});
