// The list of models, with load and unload at hand.
import { $, act, bytes, call, count, h, modelState, modelUrl, pageData, poll, redraw, setNotice, toast } from "./kit.js";

const SOURCES = { path: "registered by path", hub: "from the hub", upload: "uploaded" };

const canLoad = pageData("can-load");
let rows = [];

function actionButton(row) {
  const { status } = row.live;
  if (!canLoad || row.state !== "available") return null;
  const unload = status === "ready" || status === "loading";
  const verb = unload ? "Unload" : "Load";
  return h(
    "button.btn.btn-link btn-sm",
    {
      type: "button",
      "data-key": `act-${row.id}`,
      "aria-label": `${verb} ${row.served_model_name}`,
      onclick: (event) =>
        act(event.target, async () => {
          await call("POST", `/registry/checkpoints/${row.id}/${verb.toLowerCase()}`);
          toast(`${row.served_model_name}: ${verb.toLowerCase()} requested.`);
          again();
        }),
    },
    verb,
  );
}

function table(shown) {
  const head = ["Name", "State", "Layers", "Type", "Parameters", "Size", ""];
  return h(
    "div.table-responsive",
    {},
    h(
      "table.cards",
      {},
      h("thead", {}, h("tr", {}, head.map((text, i) => h("th", { scope: "col", class: i > 3 && text ? "num" : "" }, text || h("span.visually-hidden", {}, "Actions"))))),
      h(
        "tbody",
        {},
        shown.map((row) =>
          h(
            "tr",
            {},
            h(
              "th",
              { scope: "row" },
              h("div", {}, h("a.name-link", { href: modelUrl(row), "data-key": row.id }, row.served_model_name), h("div.small.muted", {}, `${row.model_type} · ${(row.source === "upload" && row.origin) || (SOURCES[row.source] ?? row.source)}`)),
            ),
            h("td", { "data-label": "State" }, modelState(row)),
            h("td.wide", { "data-label": "Layers" }, row.architecture),
            h("td", { "data-label": "Type" }, row.dtype),
            h("td.num", { "data-label": "Parameters" }, count(row.num_parameters)),
            h("td.num", { "data-label": "Size" }, bytes(row.size_bytes)),
            h("td.num", {}, actionButton(row)),
          ),
        ),
      ),
    ),
  );
}

function draw() {
  const words = $("#search").value.toLowerCase().split(/\s+/).filter(Boolean);
  const shown = rows.filter((row) => {
    const text = `${row.served_model_name} ${row.model_type} ${row.architecture} ${row.format} ${row.dtype} ${row.origin}`.toLowerCase();
    return words.every((word) => text.includes(word));
  });
  $("#found").textContent = words.length ? `${shown.length} of ${rows.length}` : "";
  if (shown.length) return redraw($("#models"), table(shown));
  const text = rows.length ? "No model matches." : "No model is registered yet. Upload one, or start the server with --model PATH.";
  redraw($("#models"), h("div.p-4.text-center.muted", {}, h("p", {}, text)));
}

function take(state) {
  setNotice("workers", state.notice);
  rows = state.checkpoints;
  draw();
}

take(pageData("state"));
$("#search").addEventListener("input", draw);
const again = poll(async () => take(await call("GET", "/registry/overview")), 2000);
