// The map of a model's layers: choose one with mouse or arrow keys and read its sizes.
import { $, $$, count, h, pageData } from "./kit.js";

const { layers } = pageData("detail");
const links = $$("#layer-map a"); // without scripts they lead to the layers' tab
const tooltip = h("div.tooltip.rounded.small", { hidden: true, "aria-hidden": "true" });
document.body.append(tooltip);

function showTooltip(link, layer) {
  tooltip.textContent = `${layer.title}, ${count(layer.num_parameters)} parameters`;
  tooltip.hidden = false;
  const box = link.getBoundingClientRect();
  const left = Math.min(Math.max(8, box.left + box.width / 2 - tooltip.offsetWidth / 2), innerWidth - tooltip.offsetWidth - 8);
  const above = box.top - tooltip.offsetHeight - 6;
  tooltip.style.left = `${left}px`;
  tooltip.style.top = `${above > 0 ? above : box.bottom + 6}px`;
}
const hideTooltip = () => (tooltip.hidden = true);
addEventListener("keydown", (event) => event.key === "Escape" && hideTooltip());

function select(number) {
  links.forEach((link, i) => {
    if (i === number) link.setAttribute("aria-current", "true");
    else link.removeAttribute("aria-current");
    link.tabIndex = i === number ? 0 : -1;
  });
  const layer = layers[number];
  $("#layer-detail").replaceChildren(
    h("h3", {}, layer.title),
    h("p.small", {}, layer.pairs.flatMap(([name, value], i) => [i ? " · " : "", h("span.muted", {}, `${name} `), value])),
  );
}

links.forEach((link, number) => {
  link.tabIndex = number ? -1 : 0;
  link.addEventListener("click", (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    select(number);
  });
  link.addEventListener("mouseenter", () => showTooltip(link, layers[number]));
  link.addEventListener("mouseleave", hideTooltip);
  link.addEventListener("focus", () => link.matches(":focus-visible") && showTooltip(link, layers[number]));
  link.addEventListener("blur", hideTooltip);
});
$("#layer-map").addEventListener("keydown", (event) => {
  const at = links.indexOf(document.activeElement);
  const to = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: links.length - 1 }[event.key];
  if (at < 0 || to === undefined || !links[to]) return;
  event.preventDefault();
  select(to);
  links[to].focus();
});
