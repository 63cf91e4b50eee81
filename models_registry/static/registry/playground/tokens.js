// The tokens of an answer, coloured by their probabilities: with the pointer, with the arrow keys, or as a table.
import { $, h } from "../kit.js";

const BOUNDS = [0.05, 0.2, 0.5, 0.8]; // between the colours p0 (unlikely) and p4
const MAX_TABLE_ROWS = 2000;

const percent = (logprob) => {
  const share = Math.exp(logprob) * 100;
  return `${share < 0.01 ? "<0.01" : share.toFixed(share < 1 ? 2 : 1)} %`;
};
/** A token so that it can be seen: spaces and line breaks too. */
const visible = (token) => token.replaceAll("\n", "↵").replaceAll("\t", "⇥").replace(/^ | $/g, "␣") || "∅";

function rank({ token, top }) {
  const found = top.findIndex((other) => other.token === token);
  return found < 0 ? `not among the first ${top.length}` : `choice ${found + 1}`;
}

/** A list of tokens that grows; ``push`` adds some. */
export class TokenView {
  constructor() {
    this.tokens = [];
    this.head = h("p.small.muted.mb-1", {});
    this.list = h("div.tokens", { role: "listbox", "aria-label": "Tokens by probability; the arrow keys move", onkeydown: (event) => this.#move(event) });
    this.detail = h("div.token-detail.border.rounded.shadow-sm", { hidden: true });
    this.table = h("details.small", {}, h("summary", {}, "As a table"));
    this.table.addEventListener("toggle", () => this.table.open && this.#drawTable());
    this.element = h("div", {}, this.head, this.list, this.detail, this.table);
    for (const [kind, show] of [["pointerover", true], ["focusin", true], ["pointerleave", false], ["focusout", false]]) {
      this.list.addEventListener(kind, (event) => (show ? this.#show(event.target.closest("[role=option]")) : this.#hide()));
    }
    this.list.addEventListener("click", (event) => event.target.closest("[role=option]")?.focus());
  }

  push(tokens) {
    for (const entry of tokens) {
      const number = this.tokens.push(entry) - 1;
      const { token, logprob } = entry;
      const level = logprob === null ? 4 : BOUNDS.filter((bound) => Math.exp(logprob) >= bound).length;
      this.list.append(h(`span.token.p${level}`, { role: "option", "aria-selected": "false", tabindex: number ? -1 : 0, "data-number": number, "aria-label": this.#words(entry) }, token.replaceAll("\n", "↵\n") || "∅"));
    }
    const known = this.tokens.filter(({ logprob }) => logprob !== null);
    if (!known.length) return;
    const mean = known.reduce((sum, { logprob }) => sum + logprob, 0) / known.length;
    this.head.textContent = `${this.tokens.length} tokens, perplexity ${Math.exp(-mean).toFixed(2)}`;
  }

  #words(entry) {
    const others = entry.top.filter(({ token }) => token !== entry.token).slice(0, 3);
    const rest = others.length ? `; else ${others.map(({ token, logprob }) => `${visible(token)} ${percent(logprob)}`).join(", ")}` : "";
    return `${visible(entry.token)} ${entry.logprob === null ? "" : percent(entry.logprob)}${rest}`;
  }

  #move(event) {
    const all = this.list.children;
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const ends = { Home: 0, End: all.length - 1 };
    const at = Number(event.target.dataset.number);
    if (event.key === "Escape") this.#hide();
    if (!step && !(event.key in ends)) return;
    const next = all[step ? Math.min(Math.max(at + step, 0), all.length - 1) : ends[event.key]];
    for (const old of this.list.querySelectorAll("[tabindex='0']")) old.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
    event.preventDefault();
  }

  #show(option) {
    if (!option) return;
    const entry = this.tokens[option.dataset.number];
    const known = entry.top.some(({ token }) => token === entry.token) || entry.logprob === null;
    const rows = known ? entry.top : [entry, ...entry.top];
    this.detail.replaceChildren(
      h("p.mb-1", {}, h("code.fw-bold", {}, visible(entry.token)), entry.logprob === null ? "" : ` ${percent(entry.logprob)} · ${rank(entry)}`),
      ...rows.map(({ token, logprob }) =>
        h(`div.alternative${token === entry.token ? ".fw-bold" : ""}`, {}, h("code.text-truncate", {}, visible(token)), h("meter", { min: 0, max: 1, value: Math.exp(logprob), "aria-label": "Probability" }), h("span.num", {}, percent(logprob))),
      ),
    );
    this.detail.hidden = false;
    const place = option.getClientRects()[0] ?? option.getBoundingClientRect();
    const [width, height] = [this.detail.offsetWidth, this.detail.offsetHeight];
    const below = place.bottom + height + 8 < innerHeight;
    this.detail.style.left = `${Math.max(4, Math.min(place.left, innerWidth - width - 8))}px`;
    this.detail.style.top = `${Math.max(4, below ? place.bottom + 4 : place.top - height - 4)}px`;
  }

  #hide() {
    this.detail.hidden = true;
  }

  #drawTable() {
    $("table", this.table)?.parentElement.remove();
    const rows = this.tokens.slice(0, MAX_TABLE_ROWS).map((entry, i) => {
      const others = entry.top.filter(({ token }) => token !== entry.token).map(({ token, logprob }) => `${visible(token)} ${percent(logprob)}`);
      return h("tr", {}, h("td.num", {}, String(i + 1)), h("td", {}, h("code", {}, visible(entry.token))), h("td.num", {}, entry.logprob === null ? "" : percent(entry.logprob)), h("td", {}, others.join(", ")));
    });
    const heads = ["Place", "Token", "Probability", "Others"].map((text) => h("th", { scope: "col" }, text));
    this.table.append(h("div.table-responsive", { tabindex: 0, role: "region", "aria-label": "Tokens and their probabilities" }, h("table", {}, h("thead", {}, h("tr", {}, ...heads)), h("tbody", {}, ...rows))));
  }
}
