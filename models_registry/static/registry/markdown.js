// Markdown of models as elements. Raw HTML in it is shown as text; what marked makes of the rest passes DOMPurify, which
// keeps text elements and links to the web alone. Nothing is fetched: pictures become their alternative text.
import { Marked } from "../vendor/marked/marked.esm.js";
import { h } from "./kit.js";
import { highlight } from "./playground/highlight.js";

const escapeHtml = (text) => text.replace(/[&<>"']/g, (sign) => `&#${sign.charCodeAt(0)};`);
const marked = new Marked({
  gfm: true,
  breaks: true,
  renderer: {
    html: ({ text }) => escapeHtml(text),
    image: ({ text, href }) => escapeHtml(text || href),
    // The language goes through DOMPurify as a title, which becomes the block's heading below.
    code: ({ text, lang }) => `<pre title="${escapeHtml((lang ?? "").slice(0, 30))}"><code>${escapeHtml(text)}\n</code></pre>`,
  },
});
const ALLOWED = {
  ALLOWED_TAGS: ["p", "br", "hr", "strong", "em", "del", "code", "pre", "blockquote", "ul", "ol", "li", "a", "h1", "h2", "h3", "h4", "h5", "h6", "table", "thead", "tbody", "tr", "th", "td"],
  ALLOWED_ATTR: ["href", "title", "start", "align"],
  ALLOWED_URI_REGEXP: /^https?:\/\//i,
  ALLOW_DATA_ATTR: false, // the frame's buttons are marked by them
  ALLOW_ARIA_ATTR: false,
  RETURN_DOM_FRAGMENT: true,
};

/** A block of code with its language and a button that copies it. */
function frameCode(pre, copy) {
  const onclick = () => copy(pre.textContent.replace(/\n$/, ""));
  const button = h("button.btn.btn-link.btn-sm", { type: "button", "aria-label": "Copy the code", onclick }, "Copy");
  const frame = h("div.code-block");
  pre.replaceWith(frame);
  frame.append(h("div.spread.flex-nowrap.small.muted", {}, h("span.text-truncate", {}, pre.title || "text"), button), pre);
  highlight(pre.firstChild, pre.title);
  pre.removeAttribute("title");
}

/** Draw a text into an element; ``copy`` takes the text of a block of code. */
export function drawMarkdown(place, text, copy) {
  const fragment = window.DOMPurify.sanitize(marked.parse(text), ALLOWED);
  for (const pre of fragment.querySelectorAll("pre")) {
    pre.className = "code";
    pre.tabIndex = 0;
    frameCode(pre, copy);
  }
  for (const table of fragment.querySelectorAll("table")) {
    table.className = "table w-auto";
    const frame = h("div.table-responsive", { tabindex: 0 });
    table.replaceWith(frame);
    frame.append(table);
  }
  for (const link of fragment.querySelectorAll("a")) Object.assign(link, { target: "_blank", rel: "noopener noreferrer nofollow" });
  // Headings of an answer are none of the page's.
  for (const heading of fragment.querySelectorAll("h1, h2, h3, h4, h5, h6")) heading.replaceWith(h("p.fw-bold", {}, ...heading.childNodes));
  place.replaceChildren(fragment);
}
