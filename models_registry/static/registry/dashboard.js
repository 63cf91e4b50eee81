// The dashboard: gauges, models in use, workers, the latest jobs.
import { $, ago, bytes, call, count, duration, h, modelState, modelUrl, pageData, poll, redraw, setNotice, stateMark } from "./kit.js";

const HISTORY = 60;
const rates = [];

function sparkline(values) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("class", "spark");
  svg.setAttribute("viewBox", `0 0 ${HISTORY - 1} 20`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true");
  const top = Math.max(1, ...values);
  const points = values.map((value, i) => `${HISTORY - values.length + i},${(19 - (value / top) * 17).toFixed(2)}`);
  const line = `M0,19.5H${HISTORY - values.length}${points.map((point) => `L${point}`).join("")}`;
  for (const [className, d] of [["area", `${line}V20H0Z`], ["", line]]) {
    const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
    if (className) path.setAttribute("class", className);
    path.setAttribute("d", d);
    svg.append(path);
  }
  return svg;
}

function gauge(label, value, ...rest) {
  return h("div.gauge", {}, h("dt", {}, label), h("dd", {}, value), ...rest);
}

const beside = (...parts) => h("dd.small.muted", {}, ...parts);

function memoryMeter(used, budget, label) {
  return h("meter", { min: 0, max: Math.max(budget, 1), high: budget * 0.9, value: Math.min(used, budget), "aria-label": label });
}

function drawGauges({ checkpoints, workers, jobs }) {
  const sum = (rows, read) => rows.reduce((total, row) => total + read(row), 0);
  const ready = checkpoints.filter((row) => row.live.status === "ready").length;
  const rate = sum(checkpoints, (row) => row.live.tokens_per_s);
  rates.push(rate);
  if (rates.length > HISTORY) rates.shift();
  const used = sum(workers, (row) => row.memory_used_bytes);
  const budget = sum(workers, (row) => row.memory_budget_bytes);
  const waiting = sum(checkpoints, (row) => row.live.num_waiting + row.live.num_queued);
  $("#gauges").replaceChildren(
    gauge("Models ready", String(ready), beside(`of ${checkpoints.length} registered`)),
    gauge(
      "Active requests",
      String(sum(checkpoints, (row) => row.live.num_running)),
      beside(`${waiting} waiting · ${jobs.queued} jobs queued`),
    ),
    gauge("Tokens per second", rate < 10 ? rate.toFixed(1) : count(rate), beside(sparkline(rates))),
    gauge(
      "Model memory",
      bytes(used),
      budget ? beside(memoryMeter(used, budget, "memory in use"), `of ${bytes(budget)}`) : null,
    ),
  );
}

function modelRows(rows) {
  if (!rows.length) {
    return h(
      "div.p-4.text-center.muted",
      {},
      h("p", {}, "No model is registered yet."),
      h("p", {}, pageData("can-upload") ? [h("a.btn.btn-outline-secondary", { href: "/models/upload/" }, "Upload one"), " or start the server with --model PATH."] : "The operator adds models."),
    );
  }
  const order = { ready: 0, loading: 1, failed: 2, unloaded: 3, unknown: 3 };
  const shown = [...rows]
    .sort((a, b) => order[a.live.status] - order[b.live.status] || b.live.last_used_at - a.live.last_used_at)
    .slice(0, 8);
  const head = ["Model", "State", "Memory", "Active", "Tokens/s", "Last used"];
  return h(
    "div.table-responsive",
    {},
    h(
      "table.cards",
      {},
      h("thead", {}, h("tr", {}, head.map((text, i) => h("th", { scope: "col", class: i > 1 ? "num" : "" }, text)))),
      h(
        "tbody",
        {},
        shown.map((row) =>
          h(
            "tr",
            {},
            h("th", { scope: "row" }, h("a.name-link", { href: modelUrl(row), "data-key": row.id }, row.served_model_name)),
            h("td", { "data-label": "State" }, modelState(row)),
            h("td.num", { "data-label": "Memory" }, row.live.memory_bytes ? bytes(row.live.memory_bytes) : "–"),
            h("td.num", { "data-label": "Active" }, row.live.num_running ? String(row.live.num_running) : "–"),
            h("td.num", { "data-label": "Tokens/s" }, row.live.tokens_per_s ? row.live.tokens_per_s.toFixed(1) : "–"),
            h("td.num", { "data-label": "Last used" }, row.live.last_used_at ? ago(row.live.last_used_at * 1000) : "–"),
          ),
        ),
      ),
    ),
  );
}

function workerItems(rows) {
  if (!rows.length) return h("div.p-4.text-center.muted", {}, h("p", {}, "No worker is alive. Requests wait until one is."));
  return h(
    "ul.list-group.list-group-flush",
    {},
    rows.map((row) => {
      const late = row.heartbeat_age_s > 8;
      const state = row.draining ? ["loading", "stopping"] : row.is_late ? ["failed", `no step for ${duration(row.step_age_s)}`] : late ? ["failed", "silent"] : ["ready", "alive"];
      return h(
        "li",
        {},
        h("div.spread", {}, h("b", {}, row.worker_id), stateMark(...state)),
        h("div.spread.small.muted", {}, h("span", {}, row.device || "device unknown"), h("span.num", {}, `${row.num_active} of ${row.max_active} requests`)),
        row.memory_budget_bytes ? memoryMeter(row.memory_used_bytes, row.memory_budget_bytes, "memory in use") : null,
        h(
          "div.small.muted",
          {},
          `${bytes(row.memory_used_bytes)} of ${bytes(row.memory_budget_bytes)}`,
          row.models.length ? ` · ${row.models.join(", ")}` : " · no model loaded",
        ),
      );
    }),
  );
}

function jobItems(rows) {
  if (!rows.length) return h("div.p-4.text-center.muted", {}, h("p", {}, "No jobs yet."));
  return h(
    "ul.list-group.list-group-flush",
    {},
    rows.map((row) =>
      h(
        "li.spread",
        {},
        h("div", {}, h("a.name-link", { href: `/jobs/#${row.id}`, "data-key": `job-${row.id}` }, row.batch_label || row.id.slice(0, 8)), h("div.small.muted", {}, `${row.model} · ${ago(row.created_at)}`)),
        h("div.small", {}, stateMark(row.state), h("div.muted.num", {}, `${count(row.completion_tokens)} tokens`)),
      ),
    ),
  );
}

function draw(state) {
  setNotice("workers", state.notice);
  drawGauges(state);
  redraw($("#models"), modelRows(state.checkpoints));
  redraw($("#workers"), workerItems(state.workers));
}

async function drawJobs() {
  if (!$("#jobs")) return; // this account has no jobs
  const { data } = await call("GET", "/api/jobs?limit=5");
  redraw($("#jobs"), jobItems(data));
}

draw(pageData("state"));
drawJobs().catch((error) => setNotice("jobs", error.message));
poll(async () => {
  draw(await call("GET", "/registry/overview"));
  await drawJobs();
}, 2000);
