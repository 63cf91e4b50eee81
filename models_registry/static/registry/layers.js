// The map of a model's layers: choose one with mouse or arrow keys and read its sizes.
import { $, $$, count, h, pageData } from "./kit.js";

const { layers } = pageData("detail");
const buttons = $$("#layer-map button");
const tooltip = h("div.tooltip.rounded.small", { hidden: true, "aria-hidden": "true" });
document.body.append(tooltip);

function showTooltip(button, layer) {
  tooltip.textContent = `${layer.title}, ${count(layer.num_parameters)} parameters`;
  tooltip.hidden = false;
  const box = button.getBoundingClientRect();
  const left = Math.min(Math.max(8, box.left + box.width / 2 - tooltip.offsetWidth / 2), innerWidth - tooltip.offsetWidth - 8);
  const above = box.top - tooltip.offsetHeight - 6;
  tooltip.style.left = `${left}px`;
  tooltip.style.top = `${above > 0 ? above : box.bottom + 6}px`;
}
const hideTooltip = () => (tooltip.hidden = true);
addEventListener("keydown", (event) => event.key === "Escape" && hideTooltip());

function select(number) {
  buttons.forEach((button, i) => {
    button.setAttribute("aria-pressed", String(i === number));
    button.tabIndex = i === number ? 0 : -1;
  });
  const layer = layers[number];
  $("#layer-detail").replaceChildren(
    h("h3", {}, layer.title),
    h("p.small", {}, layer.pairs.flatMap(([name, value], i) => [i ? " · " : "", h("span.muted", {}, `${name} `), value])),
  );
}

buttons.forEach((button, number) => {
  button.addEventListener("click", () => select(number));
  button.addEventListener("mouseenter", () => showTooltip(button, layers[number]));
  button.addEventListener("mouseleave", hideTooltip);
  button.addEventListener("focus", () => button.matches(":focus-visible") && showTooltip(button, layers[number]));
  button.addEventListener("blur", hideTooltip);
});
$("#layer-map").addEventListener("keydown", (event) => {
  const at = buttons.indexOf(document.activeElement);
  const to = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: buttons.length - 1 }[event.key];
  if (at < 0 || to === undefined || !buttons[to]) return;
  event.preventDefault();
  select(to);
  buttons[to].focus();
});
