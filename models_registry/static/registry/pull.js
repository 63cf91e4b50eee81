// Pulling a model from a hub: search, show what would be fetched, start. The server draws the list of pulls.
import { $, act, bytes, call, fact, h, pageData, submitted, toast } from "./kit.js";

const rules = pageData("pull-rules");
const form = $("#hub-form"); // none where the server asks no hub
const field = $("#hub-model");
const problem = $("#hub-problem");
const place = $("#hub-found");

/** Whether a text names a model; any other is searched for. */
const isName = (text) => !/\s/.test(text) && (/[/:]/.test(text) || rules.short_names.includes(text));
const drawPulls = () => document.body.dispatchEvent(new CustomEvent("live:pulls"));

function show(...children) {
  place.hidden = !children.length;
  place.replaceChildren(...children.filter(Boolean));
  $("[tabindex='-1']", place)?.focus();
}

async function lookUp(text) {
  show(h("p.muted", {}, "Asking …"));
  try {
    if (isName(text)) drawPreview(await call("POST", "/registry/pulls/preview", { model: text }));
    else drawFound(text, await call("GET", `/registry/pulls/search?text=${encodeURIComponent(text)}`));
  } catch (error) {
    show();
    throw error;
  }
}

// --- a search ----------------------------------------------------------------------------------

function drawFound(text, rows) {
  const heading = h("h3", { tabindex: "-1" }, rows.length ? `Found for “${text}”` : `The hub has no model for “${text}”`);
  const items = rows.map((row) => {
    const words = [`${row.downloads.toLocaleString("en")} downloads`, row.updated && `changed ${row.updated}`, row.formats.join(", "), row.is_gated && "gated", !row.can_be_pulled && "neither safetensors nor GGUF: can't be pulled"];
    const name = row.can_be_pulled ? h("button.btn.btn-link.btn-sm.text-break.text-start.text-wrap", { type: "button", "data-preview": row.repo_id }, row.repo_id) : h("span.small.muted.text-break.px-2", {}, row.repo_id);
    return h("li.spread", {}, name, h("span.small.muted", {}, words.filter(Boolean).join(" · ")));
  });
  show(heading, h("ul.list-unstyled.mt-2.mb-0", { "data-rows": true }, items));
}

// --- a preview ---------------------------------------------------------------------------------

function facts(found) {
  if (!found.files) return null;
  const { sizes } = found;
  const layers = sizes.num_hidden_layers && `${sizes.num_hidden_layers} layers of ${sizes.hidden_size ?? "?"}`;
  return h(
    "dl.fields.my-2",
    {},
    fact("To fetch", `${bytes(found.total_bytes)} in ${found.files.length} files`),
    fact("Left out", found.omitted_bytes && `${bytes(found.omitted_bytes)} of other files`),
    fact("Format", found.weights_bytes && [found.format, sizes.quantisation ?? sizes.dtype ?? sizes.torch_dtype].filter(Boolean).join(", ")),
    fact("Model type", found.model_type || "not stated"),
    fact("Layers", layers),
    fact("Context", sizes.max_position_embeddings && `${sizes.max_position_embeddings.toLocaleString("en")} tokens`),
    fact("Licence", found.licence || "not stated by the hub"),
    fact("Commit", found.commit.slice(0, 12)),
  );
}

function fileList(found) {
  if (!found.files?.length) return null;
  const rows = found.files.map(({ name, size_bytes: size }) => h("tr", {}, h("th.fw-normal.text-break", { scope: "row" }, name), h("td.num", {}, bytes(size))));
  return h("details.my-2", {}, h("summary", {}, `${found.files.length} files`), h("table", {}, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "File"), h("th.num", { scope: "col" }, "Size"))), h("tbody", {}, rows)));
}

/** The GGUF models of the repository; a press looks another one up. */
function optionList(found) {
  if (!(found.options?.length > 1)) return null;
  const rows = found.options.map(({ reference, tag, files, size_bytes: size, num_missing: numMissing, is_chosen: isChosen }) => {
    const name = files[0].split("/").at(-1);
    const parts = numMissing ? `lacks ${numMissing} of its parts` : files.length > 1 && `${files.length} parts`;
    const words = [isChosen && "chosen", parts].filter(Boolean).join(" · ");
    const choose = numMissing ? name : h("button.btn.btn-link.btn-sm.text-break.text-start.text-wrap.p-0", { type: "button", "data-preview": reference, "aria-current": isChosen ? "true" : null }, name);
    return h("tr", {}, h("th.fw-normal", { scope: "row" }, choose, words && h("span.small.muted.ms-2", {}, words)), h("td", {}, tag || "not stated"), h("td.num", {}, bytes(size)));
  });
  const heads = ["File", "Type", "Size"].map((text) => h(text === "Size" ? "th.num" : "th", { scope: "col" }, text));
  return h("div.overflow-auto.my-2", { id: "hub-options" }, h("table.caption-top", {}, h("caption.small", {}, "GGUF models of this repository"), h("thead", {}, h("tr", {}, heads)), h("tbody", {}, rows)));
}

function startForm(found) {
  const name = h("input", { id: "pull-name", value: found.suggested_name, maxlength: 96, pattern: "[A-Za-z0-9][A-Za-z0-9._:\\-]*", required: true, autocomplete: "off", spellcheck: "false" });
  const start = async () => {
    // A name that nobody has changed is the server's to choose: the files may be known already.
    const served = name.value === found.suggested_name ? "" : name.value;
    await call("POST", "/registry/pulls", { model: found.origin, served_model_name: served });
    show();
    toast(`The pull of ${found.origin} has begun.`);
    drawPulls();
    field.focus();
  };
  return h(
    "form.hstack.gap-2.flex-wrap.align-items-end",
    { id: "pull-form", onsubmit: (event) => submitted(event, problem, start) },
    h("div.field.flex-grow-1", {}, h("label", { for: "pull-name" }, "Served model name"), name),
    h("button.btn.btn-primary", {}, "Pull"),
  );
}

function drawPreview(found) {
  field.value = found.origin;
  const marks = { good: "done", bad: "refused" };
  const known = found.registered_as.length > 0 && h("p.small", {}, `It is registered as ${found.registered_as.join(", ")}; a pull fetches what has changed.`);
  show(
    h("h3.text-break", { tabindex: "-1" }, found.origin),
    known,
    facts(found),
    h("ul.list-unstyled.mb-2", { id: "hub-checks" }, found.checks.map(({ mark, words }) => h("li", { class: mark === "bad" ? "bad" : null }, h("i.dot", { class: marks[mark], "aria-hidden": "true" }), words))),
    optionList(found),
    fileList(found),
    found.can_be_pulled && startForm(found),
  );
}

// --- events ------------------------------------------------------------------------------------

function begin(text) {
  field.value = text;
  form.requestSubmit($("#hub-look-up"));
}

form?.addEventListener("submit", (event) => submitted(event, problem, () => lookUp(field.value.trim())));
place?.addEventListener("click", (event) => {
  const button = event.target.closest("[data-preview]");
  if (button) begin(button.dataset.preview);
});
document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-go-on]");
  if (!button) return;
  const { goOn: model, name } = button.dataset;
  act(button, async () => (await call("POST", "/registry/pulls", { model, served_model_name: name }), drawPulls()));
});
if (field?.value) $("#hub-look-up").focus(); // a link alone asks no hub for anything
