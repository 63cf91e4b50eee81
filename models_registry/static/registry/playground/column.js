// One column: a model, its conversation, and the generation that runs in it.
import { $, h } from "../kit.js";
import { chatBody, completionBody, tokensOf } from "./request.js";
import { settings } from "./settings.js";
import { start } from "./stream.js";
import { Tree } from "./tree.js";
import { TurnView, resultForm } from "./turn.js";

const MARKDOWN_EVERY_MS = 100;

/** What an error says, with a remedy where the context is too short. */
function explained({ code, param, message }, isChat) {
  if (code !== "context_length_exceeded") return message;
  if (param === "max_tokens") return `${message} Make “Longest answer” smaller, or leave it empty: then it is as much as fits.`;
  return `${message} ${isChat ? "Begin a new chat, or edit an earlier message: the conversation goes on from there without what came after it." : "Shorten it."}`;
}

/** Whether the model has written nothing: it was refused, or stopped before. */
const isEmpty = (turn) => turn.role === "assistant" && !turn.content && !turn.reasoning && !turn.tool_calls && !turn.tokens;

export class Column {
  /**
   * select: the element that chooses the model; models: what can be chosen; page: {isChat(), changed(), accepted(), ended(column)}.
   */
  constructor({ select, models, page, tree = new Tree(), closing = null }) {
    Object.assign(this, { select, models, page, tree, stop: null });
    this.hint = h("p.small.muted.px-3.m-0", { hidden: true });
    this.log = h("div.conversation", { tabindex: 0, role: "log", "aria-live": "off", "aria-label": "Conversation" });
    this.element = h("section.column", { "aria-label": closing ? "Second column" : "First column" }, h("div.column-head", {}, select, closing), this.hint, this.log);
    select.addEventListener("change", () => {
      if (this.tree.leaf === null) this.draw();
      page.changed();
    });
  }

  get isChat() {
    return this.page.isChat();
  }

  get model() {
    return this.models.find(({ name }) => name === this.select.value);
  }

  get isRunning() {
    return this.stop !== null;
  }

  /** Whether nothing is being written; else the page says so. */
  isFree() {
    if (this.page.isBusy()) this.page.refused("An answer is being written: stop it, or wait for its end.");
    return !this.page.isBusy();
  }

  // --- what a person does -----------------------------------------------------------------------

  /** Send a message, or a prompt, and let the model answer. */
  send(content, images = []) {
    const before = this.tree.leaf;
    this.#answer(this.tree.add({ role: "user", content, ...(images.length ? { images } : {}) }, this.#last()), before);
  }

  /** The turn that the next message goes behind: a message without an answer gets a branch beside it. */
  #last() {
    const { turns, leaf } = this.tree;
    if (!this.isChat) return null;
    if (leaf === null || !isEmpty(turns[leaf])) return leaf;
    const { parent } = turns[leaf];
    return turns[parent].role === "user" ? turns[parent].parent : parent;
  }

  /** Let the model answer again, beside the answer that is there. */
  regenerate(number) {
    const { parent } = this.tree.turns[number];
    if (parent !== null && this.isFree()) this.#answer(parent);
  }

  /** Put a changed turn beside the old one; one of the user is answered. */
  change(number, content) {
    if (!this.isFree()) return;
    const { role, parent, images, reasoning, model } = this.tree.turns[number];
    const kept = { ...(images ? { images } : {}), ...(reasoning ? { reasoning } : {}) };
    const before = this.tree.leaf;
    const added = this.tree.add({ role, content, ...kept, ...(role === "assistant" ? { model: `${(model ?? "").slice(0, 110)}, edited` } : {}) }, parent);
    if (role === "user") return this.#answer(added, before);
    this.draw();
    this.page.changed();
    this.page.ended(this);
  }

  /** Go on from the text of a completion. */
  goOn(number) {
    if (!this.isFree()) return;
    const { parent, content } = this.tree.turns[number];
    this.send(this.tree.turns[parent].content + content);
  }

  show(number, label) {
    if (!this.isFree()) return;
    this.tree.show(number);
    this.draw();
    const shown = this.views.get(number);
    const button = $(`[aria-label='${label === "back" ? "Earlier" : "Later"} branch']`, shown.actions);
    (button.disabled ? $("button:not(:disabled)", shown.actions) : button)?.focus();
    this.page.changed();
    this.page.ended(this);
  }

  /** The body of the next request, were ``content`` sent now. */
  nextBody(content, images = []) {
    if (!this.isChat) return completionBody(this.model, content || (this.model.has_text ? "…" : "1, 2, 3"), settings);
    const messages = this.tree.messages(this.#last());
    return chatBody(this.model, [...messages, ...new Tree([{ role: "user", content: content || "…", images }]).messages()], settings);
  }

  // --- drawing ----------------------------------------------------------------------------------

  draw() {
    this.views = new Map(this.tree.path().map((number) => [number, new TurnView(this.tree.turns[number], number, this)]));
    this.log.replaceChildren(...[...this.views.values()].map(({ element }) => element));
    if (!this.views.size) this.log.append(this.page.welcome(this));
    this.#drawResults();
    this.log.scrollTop = this.log.scrollHeight;
  }

  /** Ask for the results of calls that are the last word. */
  #drawResults() {
    const calls = this.tree.leaf === null ? null : this.tree.turns[this.tree.leaf].tool_calls;
    if (calls?.length && !this.isRunning) this.log.append(resultForm(calls, (results) => this.#sendResults(calls, results)));
  }

  drawHint() {
    const { has_text: hasText, has_chat: hasChat } = this.model;
    this.hint.textContent = !hasText ? "It has no tokenizer: prompts and answers are token ids." : hasChat ? "" : "It has no chat template: completion only.";
    this.hint.hidden = !this.hint.textContent;
  }

  #sendResults(calls, results) {
    if (!this.isFree()) return;
    let last = this.tree.leaf;
    results.forEach((content, i) => (last = this.tree.add({ role: "tool", content, tool_call_id: calls[i].id }, last)));
    this.#answer(last);
  }

  // --- the answer -------------------------------------------------------------------------------

  /** Let the model answer a turn; ``before``: the shown leaf, were the turn not there. */
  #answer(parent, before = this.tree.leaf) {
    let body;
    try {
      if (!this.page.mayStart()) return this.#withdraw(parent, before);
      const { isChat, model } = this;
      body = isChat ? chatBody(model, this.tree.messages(parent), settings) : completionBody(model, this.tree.turns[parent].content, settings);
      this.page.checkSize(body);
    } catch (error) {
      this.#withdraw(parent, before);
      return this.page.refused(error.message);
    }
    const number = this.tree.add({ role: "assistant", content: "", model: body.model, figures: {} }, parent);
    this.run = { turn: this.tree.turns[number], number, body, hasText: this.model.has_text, startedAt: performance.now(), firstAt: 0, chunks: 0, drawnAt: 0, frame: null };
    this.stop = start(this.isChat ? "chat" : "completion", body, (frame) => this.#onFrame(frame));
    this.draw();
    this.run.view = this.views.get(number);
    this.run.view.isLive = true;
    this.run.view.update();
    this.run.view.drawActions();
    this.page.started(this);
  }

  /** Take back a message for which no request could be made. */
  #withdraw(number, before) {
    const turn = this.tree.turns[number];
    if (turn.role !== "user" || number !== this.tree.turns.length - 1) return;
    this.tree.turns.pop();
    this.tree.leaf = before;
    this.page.refusedMessage(turn);
  }

  #onFrame(frame) {
    const { turn } = this.run;
    if (frame.type === "accepted") {
      turn.accepted = true;
      this.run.view.drawFigures();
      this.page.accepted();
    } else if (frame.type === "queue") this.run.view.waitAt(frame.queue);
    else if (frame.type === "chunk") this.#onChunk(frame.chunk);
    else if (frame.type === "done") {
      const { usage, ttft_s: ttft, duration_s: total } = frame;
      const { prompt_tokens_details: details, completion_tokens: tokens } = usage;
      const figures = { tokens, prompt: usage.prompt_tokens, cached: details?.cached_tokens ?? 0, reasoning: usage.completion_tokens_details?.reasoning_tokens ?? 0 };
      if (ttft !== null) figures.ttft = ttft;
      if (tokens > 1 && total > ttft) figures.rate = (tokens - 1) / (total - ttft);
      turn.miss = details?.cache_miss_reason;
      Object.assign(turn.figures, figures);
      this.#finish();
    } else if (frame.type === "cancelled") this.#finish({ reason: "you" });
    else if (frame.type === "error") this.#finish({ problem: explained(frame.error, this.isChat) });
  }

  #onChunk({ choices: [choice] }) {
    if (!choice) return;
    const { run } = this;
    const { turn } = run;
    const delta = choice.delta ?? { content: choice.text };
    const tokens = tokensOf(choice);
    if (tokens.length) (turn.tokens ??= []).push(...tokens);
    if (choice.finish_reason) turn.reason = choice.finish_reason;
    let text = delta.content ?? "";
    if (!run.hasText && choice.token_ids?.length) text = `${choice.token_ids.join(", ")}, `;
    turn.content += text;
    if (delta.reasoning_content) turn.reasoning = (turn.reasoning ?? "") + delta.reasoning_content;
    for (const { index, id, function: part } of delta.tool_calls ?? []) {
      const call = ((turn.tool_calls ??= [])[index] ??= { id: "", name: "", arguments: "" });
      if (id) call.id = id;
      call.name += part.name ?? "";
      call.arguments += part.arguments ?? "";
    }
    if (!text && !delta.reasoning_content && !delta.tool_calls && !tokens.length) return;
    const now = performance.now();
    if (turn.figures.ttft === undefined) {
      turn.figures.ttft = (now - run.startedAt) / 1000;
      run.firstAt = now;
    }
    run.chunks += 1;
    turn.figures.tokens = turn.tokens?.length ?? run.chunks;
    if (now > run.firstAt + 200) turn.figures.rate = (turn.figures.tokens - 1) / ((now - run.firstAt) / 1000);
    run.frame ??= requestAnimationFrame(() => this.#drawLive());
  }

  #isAtEnd() {
    return this.log.scrollHeight - this.log.scrollTop - this.log.clientHeight < 60;
  }

  /** Once per frame, however fast text comes; Markdown at most ten times a second. */
  #drawLive() {
    const { run } = this;
    run.frame = null;
    if (this.isChat && performance.now() - run.drawnAt < MARKDOWN_EVERY_MS) {
      run.frame = requestAnimationFrame(() => this.#drawLive());
      return;
    }
    run.drawnAt = performance.now();
    const follow = this.#isAtEnd();
    run.view.update();
    if (follow) this.log.scrollTop = this.log.scrollHeight;
  }

  #finish({ problem = null, reason = null } = {}) {
    const { turn, frame, view } = this.run;
    cancelAnimationFrame(frame);
    if (reason) turn.reason = reason;
    this.stop = null;
    if (problem) Object.assign(turn, { problem, reason: "an error" });
    if (!isEmpty(turn)) turn.figures.ttft ??= 0;
    const follow = this.#isAtEnd();
    view.isLive = false;
    view.update();
    view.drawActions();
    this.#drawResults();
    if (follow) this.log.scrollTop = this.log.scrollHeight;
    if (problem && isEmpty(turn)) this.page.refusedMessage(this.tree.turns[turn.parent]);
    this.page.ended(this);
  }
}
