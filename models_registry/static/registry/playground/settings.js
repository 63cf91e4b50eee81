// What a request has besides its messages: system message, sampling, tools, the answer's form.
import { $, h } from "../kit.js";

// fallback: the server's default, which isn't sent; always: sent even so, with this page's own value
const SPECS = [
  { name: "temperature", label: "Temperature", fallback: 1, low: 0, high: 2, step: 0.05, slider: true },
  { name: "top_p", label: "Top p", fallback: 1, low: 0.01, high: 1, step: 0.01, slider: true },
  { name: "max_tokens", label: "Longest answer, tokens", fallback: 512, low: 1, high: 1048576, step: 1, always: true },
  { name: "seed", label: "Seed", fallback: null, low: 0, high: Number.MAX_SAFE_INTEGER, step: 1, empty: "random" },
  { name: "top_k", label: "Top k", fallback: 0, low: 0, high: 1000000, step: 1, more: true, empty: "0: off" },
  { name: "min_p", label: "Min p", fallback: 0, low: 0, high: 1, step: 0.01, more: true },
  { name: "repetition_penalty", label: "Repetition penalty", fallback: 1, low: 0.01, high: 10, step: 0.01, more: true },
  { name: "presence_penalty", label: "Presence penalty", fallback: 0, low: -2, high: 2, step: 0.1, more: true },
  { name: "frequency_penalty", label: "Frequency penalty", fallback: 0, low: -2, high: 2, step: 0.1, more: true },
];
const TEXTS = ["system", "stop-strings", "tools", "tool_choice", "schema", "members", "effort"];
const JSON_TEXTS = { tools: Array.isArray, schema: isObject, members: isObject };
const EXAMPLES = {
  tools: [{ type: "function", function: { name: "get_weather", description: "The weather of a place.", parameters: { type: "object", properties: { place: { type: "string" } }, required: ["place"] } } }],
  schema: { type: "object", properties: { name: { type: "string" }, mutable: { type: "boolean" } }, required: ["name", "mutable"], additionalProperties: false },
};

function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

const field = (name) => $(`#p-${name}`);

export const settings = {
  specs: SPECS,
  /** What a person has set; null: nothing. */
  chosen: (name) => (field(name).value === "" ? null : Number(field(name).value)),
  text: (name) => $(`#${name}`).value,
  wantsProbabilities: () => $("#probabilities").checked,
  /** The value of a JSON field; null where it is empty or wrong. */
  json: (name) => parsed(name).value,
};

function parsed(name) {
  const text = $(`#${name}`).value.trim();
  if (!text) return { value: null, problem: "" };
  try {
    const value = JSON.parse(text);
    if (JSON_TEXTS[name](value)) return { value, problem: "" };
    return { value: null, problem: name === "tools" ? "It must be a list of tools: [ … ]." : "It must be an object: { … }." };
  } catch (error) {
    return { value: null, problem: `It isn't JSON: ${error.message}.` };
  }
}

function drawProblem(name) {
  const { problem } = parsed(name);
  const place = $(`#${name}-problem`);
  place.textContent = problem;
  place.hidden = !problem;
  $(`#${name}`).setAttribute("aria-invalid", String(Boolean(problem)));
  return !problem;
}

function control(spec, changed) {
  const id = `p-${spec.name}`;
  const input = h("input.parameter", { id, type: "number", min: spec.low, max: spec.high, step: spec.slider ? "any" : spec.step, "aria-describedby": `own-${spec.name}` });
  const own = h("span.form-text.m-0", { id: `own-${spec.name}` });
  const head = h("div.spread.flex-nowrap", {}, h("label", { for: id }, spec.label), input);
  input.addEventListener("input", changed);
  if (!spec.slider) return h("div", {}, head, own);
  const range = h("input", { id: `${id}-slider`, type: "range", min: spec.low, max: spec.high, step: spec.step, "aria-label": `${spec.label}, slider` });
  range.addEventListener("input", () => {
    input.value = range.value;
    changed();
  });
  return h("div", {}, head, range, own);
}

/** Show what a request to this model has where nobody chose otherwise, and whose recommendation it is. */
export function drawDefaults(model) {
  for (const { name, fallback, slider, always, empty } of SPECS) {
    const own = model.sampling[name];
    const value = own ?? fallback;
    const input = field(name);
    input.placeholder = own === undefined && empty ? empty : String(value ?? "");
    if (slider) $(`#p-${name}-slider`).value = input.value === "" ? value : input.value;
    const words = own === undefined ? "" : `the model's own: ${own} (generation_config.json)`;
    $(`#own-${name}`).textContent = input.value !== "" && own !== undefined ? `yours; ${words}` : words || (always && input.value === "" ? "this page's default, or as much as fits" : "");
  }
}

/** Whether all fields can be sent; the first wrong one is shown and gets the focus. */
export function check() {
  for (const { name } of SPECS) if (!field(name).checkValidity()) return reveal(field(name));
  for (const name of Object.keys(JSON_TEXTS)) if (!drawProblem(name)) return reveal($(`#${name}`));
  return true;
}

function reveal(input) {
  for (let at = input.closest("details"); at; at = at.parentElement.closest("details")) at.open = true;
  input.dispatchEvent(new CustomEvent("reveal", { bubbles: true }));
  input.focus();
  input.reportValidity?.();
  return false;
}

/** Everything that was set, for the saved chat. */
export function stored() {
  const params = {};
  for (const { name } of SPECS) if (settings.chosen(name) !== null) params[name] = settings.chosen(name);
  const texts = Object.fromEntries(TEXTS.filter((name) => name !== "system").map((name) => [name, settings.text(name)]));
  if (settings.wantsProbabilities()) texts.probabilities = "1";
  return { system: settings.text("system"), params, texts };
}

export function restore({ system = "", params = {}, texts = {} }) {
  $("#system").value = system;
  for (const { name } of SPECS) field(name).value = params[name] ?? "";
  for (const name of TEXTS) if (name in texts) $(`#${name}`).value = texts[name];
  $("#probabilities").checked = Boolean(texts.probabilities);
  for (const name of ["tools", "schema", "stop-strings", "members"]) if (texts[name]) $(`#${name}`).closest("details").open = true;
}

/** Make one choice of a parameter, as a person would. */
export function choose(name, value) {
  field(name).value = value;
}

export function setUp(changed) {
  for (const spec of SPECS) $(spec.more ? "#more" : "#sliders").append(control(spec, changed));
  for (const name of TEXTS) $(`#${name}`).addEventListener("input", changed);
  for (const name of Object.keys(JSON_TEXTS)) $(`#${name}`).addEventListener("input", () => drawProblem(name));
  $("#probabilities").addEventListener("change", changed);
  for (const [name, example] of Object.entries(EXAMPLES)) {
    $(`#${name}-example`).addEventListener("click", () => {
      $(`#${name}`).value = JSON.stringify(example, null, 2);
      drawProblem(name);
      changed();
    });
  }
  $("#defaults").addEventListener("click", () => {
    const { system } = stored();
    restore({ system, texts: Object.fromEntries(TEXTS.map((name) => [name, name === "system" ? system : name === "tool_choice" ? "auto" : ""])) });
    for (const name of Object.keys(JSON_TEXTS)) drawProblem(name);
    changed();
  });
}
