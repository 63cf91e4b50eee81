// The API reference: search over everything that is said of an endpoint, and Swagger UI for trying requests, which is
// fetched when it is asked for.
const $ = (selector) => document.querySelector(selector);
const operations = [...document.querySelectorAll("#reference section details")].map((element) => ({ element, text: element.textContent.toLowerCase() }));
const search = $("#search");
search.hidden = false;

function filter() {
  const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
  let shown = 0;
  for (const { element, text } of operations) {
    element.hidden = !words.every((word) => text.includes(word));
    shown += !element.hidden;
  }
  for (const section of document.querySelectorAll("#reference section")) section.hidden = ![...section.querySelectorAll("details")].some((item) => !item.hidden);
  $("#found").textContent = words.length ? `${shown} of ${operations.length}` : "";
}
search.addEventListener("input", filter);
addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.target.matches("input, textarea, select")) return;
  event.preventDefault();
  search.focus();
});

function openTarget() {
  const target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (target?.matches?.("details")) target.open = true;
}
addEventListener("hashchange", openTarget);
openTarget();

// --- trying requests ---------------------------------------------------------------------------

const button = $("#try");
button.hidden = false;

function fetchScript(address) {
  return new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = address;
    script.addEventListener("load", resolve);
    script.addEventListener("error", () => reject(new Error("The viewer can't be fetched.")));
    document.head.append(script);
  });
}

/** Operations whose path, words or name have all words of the phrase. */
function matching(tagged, phrase) {
  const words = phrase.toLowerCase().split(/\s+/).filter(Boolean);
  const matches = (operation) => {
    const text = `${operation.get("path")} ${operation.get("method")} ${operation.getIn(["operation", "summary"]) ?? ""} ${operation.getIn(["operation", "operationId"]) ?? ""}`.toLowerCase();
    return words.every((word) => text.includes(word));
  };
  return tagged.map((tag) => tag.set("operations", tag.get("operations").filter(matches))).filter((tag) => tag.get("operations").size);
}

function show(viewer) {
  $("#viewer").hidden = !viewer;
  $("#reference").hidden = viewer;
  button.textContent = viewer ? "Read" : "Try it";
  document.documentElement.classList.toggle("dark-mode", viewer && document.documentElement.dataset.theme === "dark");
}

button.addEventListener("click", async () => {
  if (!$("#viewer").hidden) return show(false);
  button.disabled = true;
  if (!window.SwaggerUIBundle) {
    const style = document.createElement("link");
    style.rel = "stylesheet";
    style.href = document.body.dataset.viewerStyle;
    document.head.append(style);
    await fetchScript(document.body.dataset.viewer);
    window.SwaggerUIBundle({
      url: "/schema",
      domNode: $("#viewer"),
      deepLinking: false,
      filter: true,
      tryItOutEnabled: true,
      persistAuthorization: false,
      validatorUrl: null,
      docExpansion: "list",
      defaultModelsExpandDepth: -1,
      syntaxHighlight: false,
      plugins: [{ fn: { opsFilter: matching } }],
      presets: [window.SwaggerUIBundle.presets.apis],
    });
  }
  show(true);
  button.disabled = false;
});
