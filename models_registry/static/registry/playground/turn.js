// One turn of a conversation as an element: what it says, and what can be done with it.
import { copy, duration, h } from "../kit.js";
import { drawMarkdown } from "../markdown.js";
import { thumbnail } from "./images.js";
import { icon, iconButton } from "./parts.js";
import { TokenView } from "./tokens.js";

const PLACE_LASTS_MS = 3000; // the server says it once a second
const WHO = { user: "You", tool: "Result" };
const MISSES = {
  evicted: "it was evicted from the cache",
  no_snapshot: "the cache has its states at other places",
  needs_all_rows: "the request needs all rows",
  disabled: "the prefix cache is off",
};

/** Figures of a turn: speed, tokens, cache, why it ended. */
function figureParts({ figures = {}, reason, miss }) {
  const part = (label, value) => h("span.text-nowrap", {}, `${label} `, h("b", {}, value));
  const { ttft, rate, tokens, prompt, cached, reasoning } = figures;
  const parts = [];
  if (ttft !== undefined) parts.push(part("first token", duration(ttft)));
  if (rate) parts.push(part("tokens/s", rate.toFixed(1)));
  if (tokens) parts.push(part("tokens", String(tokens)));
  if (reasoning) parts.push(part("thinking", String(reasoning)));
  if (prompt) parts.push(part("prompt", String(prompt)), part("cached", String(cached ?? 0)));
  if (miss in MISSES) parts.push(h("span", {}, `(${MISSES[miss]})`));
  if (reason) parts.push(part("ended by", reason));
  return parts;
}

/** Where a request waits, as the server's page of requests says it. */
function placeWords({ position, waits_for: waitsFor, estimated_s: seconds, evicts }) {
  const about = seconds === null ? "" : `, about ${Math.max(1, Math.round(seconds))} s`;
  if (waitsFor === "worker") return "waits for a worker";
  if (waitsFor === "swap") return `waits until ${evicts} is unloaded${about}`;
  if (waitsFor === "load") return `waits for the load of its model${about}`;
  return `number ${position} in the queue${about}`;
}

function callElement({ name, arguments: given }) {
  let text = given;
  try {
    text = JSON.stringify(JSON.parse(given), null, 2);
  } catch {
    // It is still being written, or no JSON: shown as it is.
  }
  return h("details.call.border.rounded", { open: true }, h("summary", {}, h("span.muted", {}, "Calls "), h("code", {}, name)), h("pre.small.px-3.pb-2", {}, text));
}

export class TurnView {
  /** owner: the column, which knows what actions do. */
  constructor(turn, number, owner) {
    Object.assign(this, { turn, number, owner });
    this.isLive = false;
    this.place = null;
    const { role } = turn;
    this.showsTokens = false;
    this.thinking = h("pre.small.thinking.muted", {});
    this.thinkingWords = h("span", {}, "Thoughts");
    this.reasoning = h("details.reasoning", {}, h("summary.muted.small", {}, this.thinkingWords), this.thinking);
    this.text = h("div.text", {});
    this.calls = h("div.vstack.gap-2", {});
    this.figures = role === "assistant" ? h("div.figures.small.muted", {}) : null;
    const pictures = turn.images?.length ? h("div.hstack.gap-2.flex-wrap", {}, ...turn.images.map(thumbnail)) : null;
    this.actions = h("div.actions", { role: "group", "aria-label": `Actions of turn ${number + 1}` });
    const who = role === "assistant" ? turn.model ?? "" : role === "user" && !owner.isChat ? "Prompt" : WHO[role];
    this.element = h(
      `article.turn.${role}`,
      {},
      h("div.who.small.muted", {}, role === "assistant" ? icon("speech") : "", h("span.text-truncate", {}, who)),
      (this.bubble = h("div.bubble", {}, pictures, this.text, role === "assistant" ? this.calls : null)),
      this.figures,
      this.actions,
    );
    this.update();
    this.drawActions();
  }

  /** Draw what the turn has now. */
  update() {
    const { role, content, reasoning, tool_calls: calls, tokens, problem } = this.turn;
    if (tokens && !this.tokens) {
      this.tokens = new TokenView();
      this.showsTokens = true;
    }
    if (tokens && this.tokens.tokens.length < tokens.length) this.tokens.push(tokens.slice(this.tokens.tokens.length));
    if (this.showsTokens) this.text.replaceChildren(this.tokens.element);
    else if (role === "assistant" && this.owner.isChat) drawMarkdown(this.text, content, copy);
    else this.#plain(content);
    this.text.classList.toggle("font-monospace", !this.owner.isChat || role === "tool");
    this.text.classList.toggle("markdown", role === "assistant" && this.owner.isChat && !this.showsTokens);
    this.text.hidden = !content && !this.showsTokens && !this.isLive;
    if (reasoning) {
      if (!this.bubble.contains(this.reasoning)) this.bubble.prepend(this.reasoning);
      if (this.thinking.textContent !== reasoning) this.thinking.textContent = reasoning;
      this.thinkingWords.textContent = this.isLive && !content ? "Thinking …" : "Thoughts";
    }
    if (calls?.length && JSON.stringify(calls) !== this.drawnCalls) {
      this.drawnCalls = JSON.stringify(calls);
      this.calls.replaceChildren(...calls.map(callElement));
    }
    if (problem && !this.bubble.querySelector(".note")) this.bubble.append(h("p.note.bad", { role: "alert" }, problem));
    this.element.classList.toggle("live", this.isLive);
    this.drawFigures();
  }

  /** Text grows at its end: a long one isn't written anew with each token. */
  #plain(content) {
    const [node] = this.text.childNodes;
    if (node?.nodeType === Node.TEXT_NODE && this.text.childNodes.length === 1 && content.startsWith(node.data)) node.appendData(content.slice(node.data.length));
    else this.text.replaceChildren(content);
  }

  /** Say where the request stands in the queue; it has left it when nothing more is heard of that. */
  waitAt(place) {
    this.place = place;
    clearTimeout(this.placeTimer);
    if (place) this.placeTimer = setTimeout(() => this.waitAt(null), PLACE_LASTS_MS);
    this.drawFigures();
  }

  #waitWords() {
    if (this.place) return placeWords(this.place);
    return this.turn.accepted ? "reading the prompt …" : "waiting for the model …";
  }

  drawFigures() {
    if (!this.figures) return;
    const waits = this.isLive && this.turn.figures?.ttft === undefined;
    const parts = waits ? [h("span.pulse", {}, this.#waitWords())] : figureParts(this.turn);
    this.figures.replaceChildren(...parts);
    this.figures.hidden = !parts.length;
  }

  drawActions() {
    const { turn, number, owner } = this;
    const branches = owner.tree.branches(number);
    const items = [];
    if (branches.length > 1) {
      const at = branches.indexOf(number);
      items.push(
        iconButton("back", "Earlier branch", () => owner.show(branches[at - 1], "back"), { disabled: at === 0 }),
        h("span.small.num", {}, h("span.visually-hidden", {}, `Branch ${at + 1} of ${branches.length}`), h("span", { "aria-hidden": "true" }, `${at + 1}/${branches.length}`)),
        iconButton("forth", "Later branch", () => owner.show(branches[at + 1], "forth"), { disabled: at === branches.length - 1 }),
      );
    }
    if (turn.content) items.push(iconButton("copy", "Copy", () => copy(turn.content)));
    if (turn.role !== "tool") items.push(iconButton("pencil", "Edit", () => this.edit()));
    if (turn.role === "assistant") {
      items.push(iconButton("retry", "Answer again", () => owner.regenerate(number)));
      if (!owner.isChat && turn.content) items.push(iconButton("go-on", "Go on", () => owner.goOn(number)));
      if (turn.tokens?.length) {
        const toggle = iconButton("tokens", "Token probabilities", () => {
          this.showsTokens = !this.showsTokens;
          toggle.setAttribute("aria-pressed", String(this.showsTokens));
          this.update();
        }, { "aria-pressed": String(this.showsTokens) });
        items.push(toggle);
      }
    }
    this.actions.replaceChildren(...items);
    this.actions.hidden = this.isLive;
  }

  /** Change the text: a message of the user is sent anew, an answer is kept beside the old one. */
  edit() {
    const { turn, number, owner } = this;
    const isUsers = turn.role === "user";
    const field = h("textarea", { value: turn.content, rows: 3, "aria-label": isUsers ? "Changed message" : "Changed answer" });
    const end = (focus) => {
      form.replaceWith(this.text);
      this.actions.hidden = false;
      if (focus) this.actions.querySelector("[aria-label=Edit]").focus();
    };
    const form = h(
      "form.stack.tight.edit",
      {
        onsubmit: (event) => {
          event.preventDefault();
          if ((!field.value.trim() && !turn.images?.length) || !owner.isFree()) return;
          end(false);
          owner.change(number, field.value);
        },
        onkeydown: (event) => {
          if (event.key === "Escape") end(true);
          else if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
          else return;
          event.stopPropagation();
        },
      },
      field,
      h("div.hstack.gap-2.justify-content-end", {}, h("button.btn.btn-outline-secondary.btn-sm", { type: "button", onclick: () => end(true) }, "Cancel"), h("button.btn.btn-primary.btn-sm", {}, isUsers ? "Send as a new branch" : "Keep as a branch")),
    );
    this.text.replaceWith(form);
    this.text.hidden = false;
    this.actions.hidden = true;
    field.focus();
  }
}

/** A form for the results of calls that nobody has answered. */
export function resultForm(calls, send) {
  const fields = calls.map(({ name }, i) => h("label.w-100", {}, h("span.small", {}, `Result of ${name}`), h("textarea.font-monospace", { rows: 2, required: true, name: `result-${i}` })));
  return h(
    "form.results.stack.tight.border.rounded.p-3",
    {
      onsubmit: (event) => {
        event.preventDefault();
        send(fields.map((label) => label.querySelector("textarea").value));
      },
    },
    ...fields,
    h("div.text-end", {}, h("button.btn.btn-primary.btn-sm", {}, calls.length > 1 ? "Send the results" : "Send the result")),
  );
}
