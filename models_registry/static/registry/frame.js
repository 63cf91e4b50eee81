// What every page of the console has: the command palette, and lists that the keyboard moves in.
import "./transfers.js";
import { $, $$, act, ago, bytes, call, confirmDialog, copy, h, isBeingLeft, isFieldChanged, leaveAfter, modelUrl, setNotice, toast } from "./kit.js";

const SESSION_ENDED = "Your session has ended. Sign in again.";
const isTyping = (element) => element.matches("input:not([type=checkbox]), textarea, select, [contenteditable]") || element.closest("dialog");

// --- lists ---------------------------------------------------------------------------------------
// j and k move through the first links of a list's rows, then of its pages; Enter opens, as on any link.

const rowLinks = () => {
  const rows = $$("main table tbody tr, main [data-rows] > li").map((row) => $("a[href], button", row));
  return [...rows, ...$$("main a[data-page]")].filter((link) => link?.checkVisibility());
};

function moveInList(step) {
  const links = rowLinks();
  const row = document.activeElement.closest("tr, [data-rows] > li");
  const at = links.findIndex((link) => link === document.activeElement || row?.contains(link));
  const next = at < 0 ? (step > 0 ? 0 : links.length - 1) : Math.min(Math.max(at + step, 0), links.length - 1);
  links[next]?.focus();
}

// --- the rail ------------------------------------------------------------------------------------

// On a narrow screen the rail is a line that is wider than the screen.
const rail = $(".rail");
const here = $("[aria-current]", rail);
if (here) rail.scrollLeft = here.offsetLeft - (rail.clientWidth - here.offsetWidth) / 2;

// --- palette -------------------------------------------------------------------------------------

const palette = $("#palette");
const field = $("#palette-search");
const list = $("#palette-list");
let models = null; // asked for when the palette opens for the first time
let shown = [];
let chosen = 0;

/** Pages of the rail, what the page offers itself (data-palette), and what works on every page. */
function standing() {
  const links = $$(".rail a[href]").map((a) => ({ name: a.textContent.trim(), kind: "page", run: () => location.assign(a.href) }));
  const offered = $$("[data-palette]").map((element) => ({ name: element.dataset.palette, kind: "action", run: () => element.click() }));
  const everywhere = [
    { name: "Switch between light and dark", kind: "action", run: () => $("[data-theme-toggle]").click() },
    { name: "Sign out", kind: "action", run: () => $(".topbar form").requestSubmit() },
  ];
  return [...links.slice(1), ...offered, ...everywhere];
}

function ofModel(row) {
  const name = row.served_model_name;
  const order = async (verb) => {
    await call("POST", `/registry/checkpoints/${row.id}/${verb}`);
    toast(verb === "load" ? `A worker was asked to load ${name}.` : `${name} is unloaded once its requests have ended.`);
  };
  const held = ["ready", "loading"].includes(row.live.status);
  const items = [{ name, kind: "model", run: () => location.assign(modelUrl(row)) }];
  if (palette.dataset.canTry) items.push({ name: `Try ${name}`, kind: "action", run: () => location.assign(`/playground/?model=${encodeURIComponent(name)}`) });
  if (palette.dataset.canLoad && row.state === "available") items.push({ name: `${held ? "Unload" : "Load"} ${name}`, kind: "action", run: () => order(held ? "unload" : "load").catch((error) => toast(error.message, "bad")) });
  return items;
}

function choose(number) {
  chosen = Math.max(0, Math.min(number, shown.length - 1));
  [...list.children].forEach((item, i) => item.setAttribute("aria-selected", String(i === chosen)));
  const item = list.children[chosen];
  field.setAttribute("aria-activedescendant", item?.id ?? "");
  item?.scrollIntoView({ block: "nearest" });
}

function drawPalette() {
  const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
  const all = [...standing(), ...(models ?? []).flatMap(ofModel)];
  shown = all.filter(({ name }) => words.every((word) => name.toLowerCase().includes(word))).slice(0, 12);
  list.replaceChildren(
    ...shown.map(({ name, kind }, i) => h("li", { role: "option", id: `palette-${i}`, onclick: () => runItem(i) }, h("span.text-truncate", {}, name), h("span.muted.small", {}, kind))),
  );
  choose(0);
}

function runItem(number) {
  palette.close();
  shown[number]?.run();
}

async function openPalette() {
  if (palette.open) return;
  field.value = "";
  palette.showModal();
  drawPalette();
  if (models || !palette.dataset.canSee) return;
  models = await call("GET", "/registry/checkpoints").catch(() => null);
  if (palette.open) drawPalette();
}

field.addEventListener("input", drawPalette);
field.addEventListener("keydown", (event) => {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (step) choose(chosen + step);
  else if (event.key === "Enter") runItem(chosen);
  else return;
  event.preventDefault();
});
palette.addEventListener("close", () => (models = null));
const opener = $("#palette-open");
opener.hidden = false;
opener.addEventListener("click", openPalette);

addEventListener("keydown", (event) => {
  if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
    event.preventDefault();
    return openPalette();
  }
  if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
  if (event.key === "j" || event.key === "k") moveInList(event.key === "j" ? 1 : -1);
  else if (event.key === "/") {
    event.preventDefault();
    const search = $$("main input[type=search], #prompt").find((input) => input.checkVisibility());
    if (search) search.focus();
    else openPalette();
  }
});

// --- what the server drew ------------------------------------------------------------------------

/** Moments in the reader's own time; those of the last day as an age. */
function localTimes(root = document) {
  for (const time of $$("time[datetime]", root)) {
    const at = new Date(time.dateTime);
    time.textContent = Date.now() - at < 86400000 && !time.closest("details, [data-exact]") ? ago(at) : at.toLocaleString();
    time.title = at.toLocaleString();
  }
}

/** Show what needs scripts: buttons that post or copy. */
function enhance(root = document) {
  for (const button of $$("[data-post], [data-delete-url], [data-go-on], [data-copy]", root)) button.hidden = false;
  localTimes(root);
}
enhance();
document.body.addEventListener("htmx:load", (event) => enhance(event.detail.elt.parentElement ?? document));
setInterval(localTimes, 10000);

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-post], [data-delete-url]");
  if (!button) return;
  const { post, deleteUrl, said, confirm, leadsTo } = button.dataset;
  if (confirm && !(await confirmDialog(confirm, button.dataset.confirmText ?? "", button.dataset.confirmAction ?? button.textContent.trim()))) return;
  const task = () => call(deleteUrl ? "DELETE" : "POST", post ?? deleteUrl);
  const done = await act(button, leadsTo ? () => leaveAfter(task, leadsTo) : task);
  if (done && said && !leadsTo) toast(said);
});

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-copy]");
  if (button) copy(document.getElementById(button.dataset.copy).textContent);
});

// Drawers: forms that open at the right. Without scripts their link shows them in the page, as after a refusal.
document.addEventListener("click", (event) => {
  const opener = event.target.closest("[data-drawer]");
  if (!opener || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  document.getElementById(opener.dataset.drawer).showModal();
});
for (const drawer of $$(".drawer")) {
  // One that the address or a refusal has opened has nothing to return the focus to.
  drawer.addEventListener("close", () => {
    const focused = document.activeElement;
    if (!drawer.open && (focused === document.body || drawer.contains(focused))) $(`[data-drawer="${drawer.id}"]`)?.focus();
  });
  if (!drawer.open) continue;
  drawer.close();
  drawer.showModal();
}

// Forms that work without scripts, but ask first with them.
document.addEventListener("submit", async (event) => {
  const { ask, askText } = event.submitter?.dataset ?? {};
  if (!ask || event.defaultPrevented) return;
  event.preventDefault();
  const form = event.target;
  if (!(await confirmDialog(ask, askText ?? "", event.submitter.textContent.trim()))) return;
  if (!form.isConnected) document.body.append(form); // its region was drawn again meanwhile, and only a form of the page is sent
  form.submit();
});

// Forms that make something are sent once: a region that is drawn again meanwhile has a new form with another token.
const SENT_MS = 10000; // in case the page was never left
let sentAt = -SENT_MS;
document.addEventListener("submit", (event) => {
  if (event.defaultPrevented || !("once" in event.target.dataset)) return;
  if (event.timeStamp - sentAt < SENT_MS) event.preventDefault();
  else sentAt = event.timeStamp;
});
window.addEventListener("pageshow", () => (sentAt = -SENT_MS));

// --- live ----------------------------------------------------------------------------------------
// The server says which topics have changed; regions of the page that name one are drawn again by htmx.

const tell = (topics) => topics.forEach((topic) => document.body.dispatchEvent(new CustomEvent(`live:${topic}`)));
let failures = 0;

// A form with hx-preserve stays while a field of it is changed. Otherwise htmx doesn't find it and draws it again.
const isChanged = (form) => [...form.elements].some(isFieldChanged);
document.body.addEventListener("htmx:beforeSwap", ({ detail }) => {
  if (!detail.shouldSwap) return;
  // The page to sign in has nothing of a region.
  const address = detail.xhr?.responseURL;
  if (address && new URL(address).pathname === "/login/") {
    detail.shouldSwap = false;
    return setNotice("connection", SESSION_ENDED);
  }
  for (const form of $$("form[hx-preserve]", detail.target)) if (!isChanged(form)) form.removeAttribute("id");
});

// Also what htmx had queued behind a request that was broken off.
document.body.addEventListener("htmx:beforeRequest", (event) => {
  if (isBeingLeft()) event.preventDefault();
});

// A page whose subject somebody else has deleted keeps what it shows, and says so.
document.body.addEventListener("htmx:responseError", (event) => {
  if (event.detail.xhr.status === 404) setNotice("gone", "What this page shows has been deleted.");
});

function drawMemory({ used, budget } = {}) {
  const place = $("#device-memory");
  if (!place || !budget) return;
  Object.assign($("meter", place), { max: budget, high: budget * 0.9, value: used });
  $(".num", place).textContent = `${bytes(used)} of ${bytes(budget)}`;
}

function connect() {
  const socket = new WebSocket(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/console/live`);
  socket.addEventListener("message", (event) => {
    const { changed, ages = {}, memory, uploads, pulls } = JSON.parse(event.data);
    // What has changed since this page was asked for, and before it was connected, was told to others only.
    const missed = Object.keys(ages).filter((topic) => failures || ages[topic] * 1000 < performance.now());
    failures = 0;
    setNotice("connection", "");
    drawMemory(memory);
    if (uploads) document.body.dispatchEvent(new CustomEvent("live-uploads", { detail: { uploads, pulls } }));
    if (!isBeingLeft()) tell(new Set([...changed, ...missed]));
  });
  socket.addEventListener("close", (event) => {
    if (event.code === 4401) return setNotice("connection", SESSION_ENDED);
    failures += 1;
    if (failures > 1) setNotice("connection", "The server can't be reached.");
    setTimeout(connect, Math.min(500 * 2 ** failures, 15000));
  });
}
connect();
