// What every page uses: building elements, talking to the server, numbers for people.
// Text from users and models only ever becomes text nodes or attributes, never markup.

/** Bootstrap's class of a control or table, which no other one of ours is without. */
function classOf(tag, type) {
  if (tag === "input" && ["checkbox", "radio"].includes(type)) return "form-check-input";
  if (tag === "input" && type === "range") return "form-range";
  return { input: "form-control", textarea: "form-control", select: "form-select", table: "table", label: "form-label" }[tag];
}

/** Make an element: h("a.btn.btn-outline-secondary", {href: "/"}, "Go"). null and false children are left out. */
export function h(spec, attributes = {}, ...children) {
  const [tag, ...classes] = spec.split(".");
  const element = document.createElement(tag || "div");
  const own = classOf(tag, attributes.type);
  if (own) classes.push(own);
  if (classes.length) element.className = classes.join(" ");
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.className += ` ${value}`;
    else if (name === "value") element.value = value;
    else if (name === "style") element.style.cssText = value; // the attribute is refused by the content security policy
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export const $ = (selector, root = document) => root.querySelector(selector);
export const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];

/** Data that the server left in the page. */
export const pageData = (id) => JSON.parse(document.getElementById(id).textContent);

/** Replace children without losing the focus: an element with the same data-key gets it back. */
function redraw(container, ...children) {
  const key = container.contains(document.activeElement) ? document.activeElement.dataset.key : null;
  container.replaceChildren(...children.flat().filter(Boolean));
  if (key) $$("[data-key]", container).find((element) => element.dataset.key === key)?.focus();
}

let numPages = 0; // pages that were asked for
const shownPage = new Map(); // by an element's id: the number of the page that it is from

/** Elements of the page as the server draws it now, by their ids; not those that are here from a page that was asked for later. */
export async function drawnParts(...ids) {
  const number = ++numPages;
  const response = await fetch(location.pathname + location.search, { credentials: "same-origin" });
  const text = await response.text();
  if (!response.ok) throw errorOf(response.status, text);
  const fresh = new DOMParser().parseFromString(text, "text/html");
  const parts = new Map();
  for (const id of ids) {
    const drawn = fresh.getElementById(id);
    if (!drawn || (shownPage.get(id) ?? 0) > number) continue;
    shownPage.set(id, number);
    parts.set(id, drawn);
  }
  return parts;
}

/** Replace elements by those of the same ids on the page as the server draws it now; focus and places in lists stay. */
export async function redrawParts(...ids) {
  for (const [id, drawn] of await drawnParts(...ids)) {
    const old = document.getElementById(id);
    if (!old || old.innerHTML === drawn.innerHTML) continue;
    const places = new Map($$("[data-scroll]", old).map((element) => [element.dataset.scroll, element.scrollLeft]));
    redraw(old, [...drawn.childNodes]);
    for (const element of $$("[data-scroll]", old)) element.scrollLeft = places.get(element.dataset.scroll) ?? 0;
  }
}

class ServerError extends Error {
  constructor(message, status, code) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

function cookie(name) {
  const found = document.cookie.split("; ").find((item) => item.startsWith(`${name}=`));
  return found ? decodeURIComponent(found.slice(name.length + 1)) : "";
}

export const csrfToken = () => cookie("csrftoken");

/** The message of any error answer, in OpenAI's shape or not. */
export function errorOf(status, text) {
  try {
    const { error } = JSON.parse(text);
    return new ServerError(error.message, status, error.code);
  } catch {
    if (status === 0) return new ServerError("The server can't be reached.", 0);
    return new ServerError(`The server answered ${status}.`, status);
  }
}

/** Fetch JSON; throws ServerError with the server's own sentence. */
export async function call(method, url, body) {
  let response;
  try {
    response = await fetch(url, {
      method,
      credentials: "same-origin",
      headers: {
        Accept: "application/json",
        "X-CSRFToken": csrfToken(),
        ...(body === undefined ? {} : { "Content-Type": "application/json" }),
      },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch {
    throw errorOf(0, "");
  }
  const text = await response.text();
  if (!response.ok) throw errorOf(response.status, text);
  return text ? JSON.parse(text) : null;
}

/** A function that runs a task, which must not throw, once at a time: what is asked for meanwhile is one run behind it. */
function oneAtATime(task) {
  let isRunning = false;
  let again = false;
  return async function run() {
    if (isRunning) return (again = true);
    isRunning = true;
    await task();
    isRunning = false;
    if (again) {
      again = false;
      run();
    }
  };
}

/** Run a task when one of the topics of the server changes. Returns a function that runs it now. */
export function onLive(topics, task) {
  const run = oneAtATime(async () => {
    try {
      await task();
      setNotice("connection", "");
    } catch (error) {
      setNotice("connection", error.message);
    }
  });
  for (const topic of topics) document.body.addEventListener(`live:${topic}`, run);
  return run;
}

/** Run a task now and then while the page can be seen, once at a time; failures slow it down and show once. Returns a function that runs it now. */
export function poll(task, everyMs) {
  let failures = 0;
  let timer = null;
  const run = oneAtATime(async () => {
    clearTimeout(timer);
    if (!document.hidden) {
      try {
        await task();
        if (failures) setNotice("connection", "");
        failures = 0;
      } catch (error) {
        failures += 1;
        setNotice("connection", error.message);
      }
    }
    timer = setTimeout(run, Math.min(everyMs * 2 ** failures, 30000));
  });
  document.addEventListener("visibilitychange", () => document.hidden || run());
  timer = setTimeout(run, everyMs);
  return run;
}

/** Let files be dropped on an element, which has the class "over" meanwhile; ``take`` gets the drop's data. */
export function onDrop(place, take) {
  for (const name of ["dragenter", "dragover"]) {
    place.addEventListener(name, (event) => {
      event.preventDefault();
      place.classList.add("over");
    });
  }
  place.addEventListener("dragleave", (event) => {
    if (!place.contains(event.relatedTarget)) place.classList.remove("over");
  });
  place.addEventListener("drop", (event) => {
    event.preventDefault();
    place.classList.remove("over");
    take(event.dataTransfer);
  });
}

/** A name and its value in a list of facts (dl.fields); nothing if there is no value. */
export const fact = (name, value) => (value ? h("div", {}, h("dt", {}, name), h("dd", {}, value)) : null);

/** A line at the top of the page that stays until it is cleared. */
export function setNotice(key, message, kind = "warn") {
  const place = $("#notices");
  const old = $$("[data-notice]", place).find((element) => element.dataset.notice === key);
  if (old && old.textContent === message) return;
  old?.remove();
  if (message) place.append(h(`p.note.${kind}`, { "data-notice": key }, message));
}

/** A message that goes away by itself (errors wait for the reader). */
export function toast(message, kind = "good") {
  const close = h("button.btn.btn-sm", { type: "button", "aria-label": "Dismiss", onclick: () => item.remove() }, "×");
  const item = h(`div.note.spread.flex-nowrap.shadow.${kind}`, {}, h("span", {}, message), close);
  $("#toasts").append(item);
  if (kind !== "bad") setTimeout(() => item.remove(), 5000);
}

/** Whether a field isn't as the page had it. */
export function isFieldChanged(field) {
  if (field.matches("[type=checkbox], [type=radio]")) return field.checked !== field.defaultChecked;
  if (!field.options) return "defaultValue" in field && field.value !== field.defaultValue;
  const options = [...field.options];
  // A list that names no choice begins with its first one.
  const first = field.multiple || options.some((option) => option.defaultSelected) ? null : options.find((option) => !option.disabled);
  return options.some((option) => option.selected !== (option.defaultSelected || option === first));
}

/** Run an action of a button: busy while it runs, errors as toasts. Returns whether it went well. */
export async function act(button, task) {
  button.disabled = true;
  try {
    await task();
    return true;
  } catch (error) {
    toast(error.message, "bad");
    return false;
  } finally {
    button.disabled = false;
  }
}

let isLeft = false;

/** Whether the page is about to go: what it shows is being deleted. */
export const isBeingLeft = () => isLeft;

/** Delete what the page shows, then go elsewhere. Meanwhile nothing is drawn again: the server has no such page any more. */
export async function leaveAfter(task, address) {
  isLeft = true;
  for (const asking of $$(".htmx-request")) asking.dispatchEvent(new CustomEvent("htmx:abort", { bubbles: true, detail: {} }));
  try {
    await task();
  } catch (error) {
    isLeft = false;
    throw error;
  }
  location.assign(address);
}

/** Run what a form's submission asks for: its button is busy meanwhile, an error is shown in the element ``problem``. */
export async function submitted(event, problem, task) {
  event.preventDefault();
  problem.hidden = true;
  event.submitter.disabled = true;
  try {
    await task();
  } catch (error) {
    problem.textContent = error.message;
    problem.hidden = false;
  } finally {
    event.submitter.disabled = false;
  }
}

/** Ask before something that can't be undone. */
export function confirmDialog(title, text, action) {
  return new Promise((resolve) => {
    const dialog = h(
      "dialog",
      { "aria-label": title, onclose: () => (resolve(dialog.returnValue === "yes"), dialog.remove()) },
      h("h2", {}, title),
      h("p", {}, text),
      h(
        "form.hstack.gap-2.flex-wrap",
        { method: "dialog" },
        h("button.btn.btn-outline-secondary", { value: "no", autofocus: true }, "Keep it"),
        h("button.btn.btn-outline-danger", { value: "yes" }, action),
      ),
    );
    document.body.append(dialog);
    dialog.showModal();
  });
}

// --- the clipboard ---------------------------------------------------------------------------

/** Copy a text, and say so. */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return toast("Copied.");
  } catch {
    // Clipboards are for secure origins; the old way works on all of them.
    const place = h("textarea.visually-hidden", { value: text, "aria-hidden": "true", tabindex: -1 });
    const focused = document.activeElement;
    document.body.append(place);
    place.select();
    const done = document.execCommand("copy");
    place.remove();
    focused?.focus();
    toast(done ? "Copied." : "The browser refuses to copy.", done ? "good" : "warn");
  }
}

// --- numbers ---------------------------------------------------------------------------------

export function bytes(count) {
  let value = Number(count) || 0;
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (value < 1024) return `${value.toFixed(unit === "B" ? 0 : 1)} ${unit}`;
    value /= 1024;
  }
  return `${value.toFixed(1)} TiB`;
}

export function count(number) {
  let value = Number(number) || 0;
  for (const unit of ["", " k", " M", " B"]) {
    if (value < 1000) return `${value.toFixed(unit ? 1 : 0)}${unit}`;
    value /= 1000;
  }
  return `${value.toFixed(1)} T`;
}

export function duration(seconds) {
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s`;
  return `${(seconds / 3600).toFixed(1)} h`;
}

export function ago(date) {
  const seconds = Math.max(0, (Date.now() - new Date(date)) / 1000);
  if (seconds < 5) return "just now";
  if (seconds < 60) return `${Math.round(seconds)} s ago`;
  if (seconds < 86400) return `${duration(seconds)} ago`;
  return new Date(date).toLocaleDateString(undefined, { day: "numeric", month: "short", year: "numeric" });
}

export const modelUrl = (row) => `/models/${row.id}/`;
