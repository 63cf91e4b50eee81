// Colours in the code of answers: comments, texts, numbers, and words that a language keeps for itself.
import { h } from "../kit.js";

const WORDS = {
  python: "and as assert async await break case class continue def del elif else except finally for from global if import in is lambda match nonlocal not or pass raise return try while with yield True False None self",
  javascript: "async await break case catch class const continue default delete do else export extends finally for from function if import in instanceof interface let new of return static super switch this throw try type typeof var void while yield true false null undefined",
  c: "auto bool break case catch char class const constexpr continue default delete do double else enum extern false float for fn func go if impl import int interface let long match mod mut namespace new nil null nullptr package private protected pub public return short signed sizeof static std string struct super switch template this throw true try type typedef typename union unsigned use using var virtual void volatile while",
  shell: "case do done elif else esac export fi for function if in local return set then while echo cd",
  sql: "and as asc by case create delete desc distinct drop else end exists from group having in index insert into is join left like limit not null on or order outer primary select set table then union update values when where with",
  json: "true false null",
};
const NAMES = { py: "python", python3: "python", js: "javascript", ts: "javascript", typescript: "javascript", jsx: "javascript", tsx: "javascript", java: "c", cpp: "c", "c++": "c", cs: "c", csharp: "c", go: "c", rust: "c", rs: "c", kotlin: "c", swift: "c", php: "c", bash: "shell", sh: "shell", zsh: "shell", console: "shell", yaml: "json", yml: "json", toml: "json" };
const COMMENTS = { python: "#[^\\n]*", shell: "#[^\\n]*", sql: "--[^\\n]*", javascript: "//[^\\n]*|/\\*[^]*?(?:\\*/|$)", c: "//[^\\n]*|/\\*[^]*?(?:\\*/|$)", json: "#[^\\n]*" };
const TEXTS = '"""[^]*?(?:"""|$)|"(?:[^"\\\\\\n]|\\\\.)*"?|\'(?:[^\'\\\\\\n]|\\\\.)*\'?|`(?:[^`\\\\]|\\\\[^])*`?';

const rules = new Map(
  Object.keys(WORDS).map((name) => [name, { pattern: new RegExp(`(${COMMENTS[name]})|(${TEXTS})|\\b(\\d[\\w.]*)|([A-Za-z_]\\w*)`, "g"), words: new Set(WORDS[name].split(" ")) }]),
);

/** Colour the text of an element, if the language is known. */
export function highlight(element, language) {
  const name = language.trim().toLowerCase();
  const rule = rules.get(NAMES[name] ?? name);
  if (!rule) return;
  const text = element.textContent;
  const parts = [];
  let end = 0;
  for (const match of text.matchAll(rule.pattern)) {
    const [whole, comment, string, number, word] = match;
    const kind = comment ? "comment" : string ? "string" : number ? "number" : rule.words.has(name === "sql" ? word.toLowerCase() : word) ? "word" : null;
    if (!kind) continue;
    parts.push(text.slice(end, match.index), h(`span.hl-${kind}`, {}, whole));
    end = match.index + whole.length;
  }
  element.replaceChildren(...parts, text.slice(end));
}
