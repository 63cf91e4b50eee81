// Markdown of models as elements. Raw HTML in it is shown as text; what marked makes of the rest passes DOMPurify, which
// keeps text elements and links to the web alone. Nothing is fetched: pictures become their alternative text.
import { Marked } from "../vendor/marked/marked.esm.js";

const escapeHtml = (text) => text.replace(/[&<>"']/g, (sign) => `&#${sign.charCodeAt(0)};`);
const marked = new Marked({
  gfm: true,
  breaks: true,
  renderer: {
    html: ({ text }) => escapeHtml(text),
    image: ({ text, href }) => escapeHtml(text || href),
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

/** Draw a text into an element. */
export function drawMarkdown(place, text) {
  const fragment = window.DOMPurify.sanitize(marked.parse(text), ALLOWED);
  for (const pre of fragment.querySelectorAll("pre")) {
    pre.className = "code";
    pre.tabIndex = 0;
  }
  for (const table of fragment.querySelectorAll("table")) table.className = "table w-auto";
  for (const link of fragment.querySelectorAll("a")) Object.assign(link, { target: "_blank", rel: "noopener noreferrer nofollow" });
  // Headings of an answer are none of the page's.
  for (const heading of fragment.querySelectorAll("h1, h2, h3, h4, h5, h6")) {
    const line = document.createElement("p");
    line.className = "fw-bold";
    line.append(...heading.childNodes);
    heading.replaceWith(line);
  }
  place.replaceChildren(fragment);
}
