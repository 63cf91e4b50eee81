// Facts of a model that people set by hand.
import { factField, factValue } from "./facts.js";
import { $, $$, act, call, pageData } from "./kit.js";
import { reloadWith } from "./reload.js";

const detail = pageData("detail");
const base = `/registry/checkpoints/${detail.id}`;
const rules = new Map(detail.overridable.map((rule) => [rule.name, rule]));
const factSelect = $("#override-fact"); // missing where the account may not set facts

function drawOverride() {
  const rule = rules.get(factSelect.value);
  $("#override-meaning").textContent = rule.meaning;
  const current = detail.facts.find((fact) => fact.name === rule.name)?.value;
  $("#override-input").replaceChildren(factField(rule, "override-value", current));
}
if (factSelect) {
  factSelect.addEventListener("change", drawOverride);
  drawOverride();
}
$("#override")?.addEventListener("submit", (event) => {
  event.preventDefault();
  const rule = rules.get(factSelect.value);
  const value = factValue(rule, $("#override-value").value);
  act(event.submitter, async () => {
    await call("POST", `${base}/overrides`, { fact: rule.name, value });
    reloadWith(`${rule.name} is set. A loaded model keeps the old value until its next load.`);
  });
});
for (const button of $$("button[data-override]")) {
  button.addEventListener("click", () => {
    factSelect.value = button.dataset.override;
    drawOverride();
    $("#override-value").focus();
    $("#override").scrollIntoView({ block: "center" });
  });
}
for (const button of $$("[data-clear]")) {
  button.addEventListener("click", () =>
    act(button, async () => {
      await call("DELETE", `${base}/overrides/${encodeURIComponent(button.dataset.clear)}`);
      reloadWith(`${button.dataset.clear} is detected again.`);
    }),
  );
}
