// The model page's "Will it fit": what a load takes on each worker, and what a number of sequences would need.
import { $, bytes, h, pageData } from "./kit.js";

const VERDICTS = {
  resident: ["good", "It is loaded here."],
  fits: ["good", "It fits beside what is loaded."],
  fits_after_eviction: ["warn", "It fits once other models have made room."],
  pinned_models_in_the_way: ["bad", "It doesn't fit: pinned models are in the way."],
  too_large: ["bad", "It doesn't fit, even alone."],
};
const PARTS = [
  ["pinned", "pinned models"],
  ["others", "other models"],
  ["weights", "its weights"],
  ["states", "its states"],
  ["free", "free"],
];

const workers = pageData("detail").fits; // as the workers answered when the page was made

/** Shares of a worker's memory: the load as it is planned, beside what is there already. */
function shares(fit) {
  const states = Math.max(0, fit.needed_bytes - fit.weights_bytes);
  const others = fit.used_bytes - fit.pinned_bytes;
  const free = Math.max(0, fit.budget_bytes - fit.needed_bytes - fit.used_bytes);
  return { pinned: fit.pinned_bytes, others, weights: fit.weights_bytes, states, free };
}

function memoryBar(sizes) {
  const total = PARTS.reduce((sum, [name]) => sum + sizes[name], 0) || 1;
  const shown = PARTS.filter(([name]) => sizes[name]);
  return [
    h("div.share-bar", { "aria-hidden": "true" }, shown.map(([name]) => h(`i.share-${name}`, { style: `flex-grow: ${sizes[name] / total}` }))),
    h("ul.legend.list-unstyled.hstack.gap-3.flex-wrap.small.muted.mt-2.mb-0", {}, shown.map(([name, words]) => h("li", {}, h(`i.share-${name}`), `${words} `, h("b.num", {}, bytes(sizes[name]))))),
  ];
}

/** Weights and the states of so many sequences against what pinned models leave of the memory. */
function wish(fit, tokens, sequences) {
  const each = fit.bytes_per_sequence + tokens * fit.bytes_per_token;
  const needed = fit.weights_bytes + sequences * each;
  const room = fit.budget_bytes - fit.pinned_bytes;
  const limits = [
    tokens > fit.max_model_len && `the longest sequence is ${fit.max_model_len.toLocaleString("en")} tokens`,
    sequences > fit.max_num_seqs && `${fit.max_num_seqs.toLocaleString("en")} are computed at once, the rest waits`,
  ].filter(Boolean);
  return h(
    "p.small",
    {},
    `${bytes(fit.weights_bytes)} of weights and ${sequences.toLocaleString("en")} × ${bytes(each)} of state are `,
    h("b.num", {}, bytes(needed)),
    needed <= room ? `: room enough in ${bytes(room)}.` : `: more than the ${bytes(room)} that can be had.`,
    limits.length ? ` With its settings, ${limits.join(", and ")}.` : "",
  );
}

function workerItem(fit, tokens, sequences) {
  const [kind, words] = VERDICTS[fit.verdict] ?? ["warn", fit.verdict];
  const full = fit.full_sequences.toLocaleString("en");
  return h(
    "li",
    {},
    h("div.spread", {}, h("b", {}, fit.worker_id), h("span.small.num.muted", {}, `${bytes(fit.needed_bytes)} of ${bytes(fit.budget_bytes)}`)),
    h(`p.fw-semibold.${kind}`, {}, words),
    memoryBar(shares(fit)),
    h(
      "p.small.muted",
      {},
      `A load takes ${bytes(fit.weights_bytes)} weights + ${bytes(Math.max(0, fit.needed_bytes - fit.weights_bytes))} reserved states: room for ${full} sequences of ${
        fit.bytes_per_token ? `${fit.max_model_len.toLocaleString("en")} tokens, or more shorter ones` : "any length"
      }; up to ${fit.max_num_seqs.toLocaleString("en")} are computed at once.`,
    ),
    wish(fit, tokens, sequences),
  );
}

const numberIn = (id) => Math.max(1, Math.floor(Number($(id).value) || 1));

function draw() {
  $("#fit").replaceChildren(...workers.map((fit) => workerItem(fit, numberIn("#context"), numberIn("#concurrency"))));
}

for (const id of ["#context", "#concurrency"]) $(id)?.addEventListener("input", draw);
if (workers.length) draw();
