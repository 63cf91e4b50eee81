// One model: layer map, live state, overrides, tensors, settings.
import { factField, factValue } from "./facts.js";
import { askFit, departureText } from "./fit.js";
import { $, $$, act, bytes, call, confirmDialog, count, h, modelState, pageData, poll, setNotice, toast } from "./kit.js";
import { reloadWith, showSaid } from "./reload.js";

let row = pageData("detail");
const base = `/registry/checkpoints/${row.id}`;
const about = row.description;

// --- layer map ---------------------------------------------------------------------------------

const WORDS = {
  attention: "attention (GQA)",
  mla: "latent attention (MLA)",
  mamba1: "Mamba-1",
  mamba2: "Mamba-2",
  mamba3: "Mamba-3",
  gated_delta: "gated delta rule",
  kimi_delta: "delta rule with a decay per channel",
  lightning: "linear attention",
  mlstm: "mLSTM",
  rg_lru: "gated linear recurrence (RG-LRU)",
  short_conv: "short convolution",
  time_mix: "RWKV time mixing",
  channel_mix: "RWKV channel mixing",
  parallel: "mixers side by side",
  mlp: "MLP",
  moe: "mixture of experts",
};
const words = (kind) => WORDS[kind] ?? kind;
const layerTitle = (layer) => `Layer ${layer.number}: ${[layer.token_mixer, layer.channel_mixer].filter(Boolean).map(words).join(" + ")}`;

const tooltip = h("div.tooltip", { hidden: true, "aria-hidden": "true" });
document.body.append(tooltip);

function showTooltip(button, layer) {
  tooltip.textContent = `${layerTitle(layer)}, ${count(layer.num_parameters)} parameters`;
  tooltip.hidden = false;
  const box = button.getBoundingClientRect();
  const left = Math.min(Math.max(8, box.left + box.width / 2 - tooltip.offsetWidth / 2), innerWidth - tooltip.offsetWidth - 8);
  const above = box.top - tooltip.offsetHeight - 6;
  tooltip.style.left = `${left}px`;
  tooltip.style.top = `${above > 0 ? above : box.bottom + 6}px`;
}
const hideTooltip = () => (tooltip.hidden = true);
addEventListener("keydown", (event) => event.key === "Escape" && hideTooltip());

function selectLayer(buttons, number) {
  buttons.forEach((button, i) => {
    button.setAttribute("aria-pressed", String(i === number));
    button.tabIndex = i === number ? 0 : -1;
  });
  const layer = about.layers[number];
  const pairs = [
    ...Object.entries(layer.sizes),
    ["parameters", count(layer.num_parameters)],
    ...(layer.state_bytes_per_token ? [["state per token", bytes(layer.state_bytes_per_token)]] : []),
    ...(layer.state_bytes_per_sequence ? [["state per sequence", bytes(layer.state_bytes_per_sequence)]] : []),
  ];
  $("#layer-detail").replaceChildren(
    h("h3", {}, layerTitle(layer)),
    h("p.small", {}, pairs.flatMap(([name, value], i) => [i ? " · " : "", h("span.muted", {}, `${name} `), String(value)])),
  );
}

function drawLayerMap() {
  const map = $("#layer-map");
  if (about.layers.length <= 16) map.classList.add("few");
  const buttons = about.layers.map((layer, number) =>
    h(
      "button.layer",
      {
        type: "button",
        "aria-label": layerTitle(layer),
        onclick: () => selectLayer(buttons, number),
        onmouseenter: (event) => showTooltip(event.target, layer),
        onmouseleave: hideTooltip,
        onfocus: (event) => event.target.matches(":focus-visible") && showTooltip(event.target, layer),
        onblur: hideTooltip,
      },
      layer.token_mixer && h(`i.k-${layer.token_mixer}`),
      layer.channel_mixer && h(`i.channel.k-${layer.channel_mixer}`),
    ),
  );
  map.replaceChildren(...buttons);
  map.addEventListener("keydown", (event) => {
    const at = buttons.indexOf(document.activeElement);
    const to = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: buttons.length - 1 }[event.key];
    if (at < 0 || to === undefined || !buttons[to]) return;
    event.preventDefault();
    selectLayer(buttons, to);
    buttons[to].focus();
  });
  const kinds = [...new Set([...about.layers.map((l) => l.token_mixer), ...about.layers.map((l) => l.channel_mixer)])].filter(Boolean);
  $("#legend").replaceChildren(
    ...kinds.map((kind) => {
      const number = about.layers.filter((l) => l.token_mixer === kind || l.channel_mixer === kind).length;
      return h("li", {}, h(`i.k-${kind}`), `${words(kind)} × ${number}`);
    }),
  );
  if (buttons.length) selectLayer(buttons, 0);
}
drawLayerMap();

for (const time of $$("time")) time.textContent = new Date(time.dateTime).toLocaleString();

// --- live state ----------------------------------------------------------------------------------

// Elements for what the account may not do are missing, so they are looked up with "?.".
const loadButton = $("#load");

function drawLive() {
  const { status, progress, stage, error } = row.live;
  $("#live").replaceChildren(modelState(row));
  const held = status === "ready" || status === "loading";
  if (loadButton) {
    loadButton.textContent = held ? "Unload" : "Load";
    loadButton.classList.toggle("btn-primary", !held);
    loadButton.classList.toggle("btn-outline-secondary", held);
    loadButton.hidden = row.state !== "available";
  }
  $("#load-progress").hidden = status !== "loading";
  $("#load-progress progress").value = progress;
  $("#load-stage").textContent = stage || "loading";
  $("#load-percent").textContent = `${Math.round(progress * 100)} %`;
  $("#load-error").hidden = !error;
  $("#load-error").textContent = error ? `The last load failed: ${error}` : "";
  const departure = departureText(row.live);
  $("#departure").hidden = !departure;
  $("#departure").textContent = departure;
}
drawLive();

const askFitAgain = () => row.state === "available" && row.live.status !== "unknown" && askFit(`${base}/fit`);
askFitAgain();

const refreshSoon = poll(async () => {
  const state = await call("GET", "/registry/overview");
  setNotice("workers", state.notice);
  const fresh = state.checkpoints.find((item) => item.id === row.id);
  if (!fresh) return location.assign("/models/");
  const changed = fresh.live.status !== row.live.status;
  row = { ...row, ...fresh };
  drawLive();
  if (changed) askFitAgain();
}, 1500);

loadButton?.addEventListener("click", () =>
  act(loadButton, async () => {
    const verb = loadButton.textContent.toLowerCase();
    await call("POST", `${base}/${verb}`);
    toast(verb === "load" ? "A worker was asked to load it." : "It is unloaded once its requests have ended.");
    refreshSoon();
  }),
);

// --- overrides -------------------------------------------------------------------------------------

const rules = new Map(about.overridable.map((rule) => [rule.name, rule]));
const factSelect = $("#override-fact");

function drawOverride() {
  const rule = rules.get(factSelect.value);
  $("#override-meaning").textContent = rule.meaning;
  const current = about.facts.find((fact) => fact.name === rule.name)?.value;
  $("#override-input").replaceChildren(factField(rule, "override-value", current));
}
if (factSelect) {
  factSelect.addEventListener("change", drawOverride);
  drawOverride();
}

showSaid();

$("#override")?.addEventListener("submit", (event) => {
  event.preventDefault();
  const rule = rules.get(factSelect.value);
  const value = factValue(rule, $("#override-value").value);
  act(event.submitter, async () => {
    await call("POST", `${base}/overrides`, { fact: rule.name, value });
    reloadWith(`${rule.name} is set. A loaded model keeps the old value until its next load.`);
  });
});
for (const button of $$("[data-override]")) {
  button.addEventListener("click", () => {
    if (rules.get(button.dataset.override).is_long) {
      $("#template-source").focus();
      return $("#chat-template").scrollIntoView();
    }
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

// --- tensors -----------------------------------------------------------------------------------------

const PAGE = 25;
let offset = 0;
let asked = 0;

async function drawTensors() {
  const ticket = ++asked;
  const query = new URLSearchParams({ search: $("#tensor-search").value, offset, limit: PAGE });
  let page;
  try {
    page = await call("GET", `${base}/tensors?${query}`);
  } catch (error) {
    return toast(error.message, "bad");
  }
  if (ticket !== asked) return; // a later search has overtaken this one
  const last = offset + page.tensors.length;
  $("#tensor-count").textContent = page.count ? `${offset + 1} to ${last} of ${page.count}` : "none match";
  $("#tensors-back").disabled = offset === 0;
  $("#tensors-next").disabled = last >= page.count;
  $("#tensors").replaceChildren(
    ...page.tensors.map((tensor) =>
      h(
        "tr",
        {},
        h("td.font-monospace", {}, tensor.name),
        h("td.font-monospace", {}, tensor.dtype),
        h("td.font-monospace.text-nowrap", {}, tensor.shape.join(" × ") || "scalar"),
        h("td.num", {}, bytes(tensor.size_bytes)),
        h("td.small.muted", {}, tensor.file),
      ),
    ),
  );
}
let searchTimer;
$("#tensor-search").addEventListener("input", () => {
  clearTimeout(searchTimer);
  searchTimer = setTimeout(() => {
    offset = 0;
    drawTensors();
  }, 180);
});
$("#tensors-back").addEventListener("click", () => ((offset = Math.max(0, offset - PAGE)), drawTensors()));
$("#tensors-next").addEventListener("click", () => ((offset += PAGE), drawTensors()));
drawTensors();

// --- settings, name, removal ---------------------------------------------------------------------------

$("#settings")?.addEventListener("submit", (event) => {
  event.preventDefault();
  const settings = {};
  for (const field of event.target.elements) {
    if (!field.name) continue;
    settings[field.name] = field.value === "" ? null : field.dataset.kind === "number" ? Number(field.value) : field.value;
  }
  act(event.submitter, async () => {
    await call("PATCH", `${base}/settings`, { settings });
    toast("Saved. The settings hold from the next load on.");
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

$("#refresh")?.addEventListener("click", (event) =>
  act(event.target, async () => {
    await call("POST", `${base}/refresh`);
    reloadWith("The files were inspected again.");
  }),
);

$("#delete")?.addEventListener("click", async (event) => {
  const text = row.source === "upload" ? "Its files are removed from this server. This can't be undone." : "It is taken out of the registry; its files stay where they are.";
  if (!(await confirmDialog(`Delete ${row.served_model_name}?`, text, "Delete it"))) return;
  act(event.target, async () => {
    await call("DELETE", base);
    location.assign("/models/");
  });
});
