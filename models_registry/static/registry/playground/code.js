// The request that the page would send now, as curl, Python and JavaScript.

const MAX_URL = 60; // characters of a picture's data URL that are shown; what is copied has all of them

const shellQuote = (text) => `'${text.replaceAll("'", "'\\''")}'`;
const indent = (text, by) => text.replaceAll("\n", `\n${by}`);

/** A value of JSON as a Python literal. */
function python(value, depth = 0) {
  const inner = "    ".repeat(depth + 1);
  const end = "    ".repeat(depth);
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value !== "object") return JSON.stringify(value);
  const isList = Array.isArray(value);
  const items = isList ? value.map((item) => python(item, depth + 1)) : Object.entries(value).map(([name, item]) => `${JSON.stringify(name)}: ${python(item, depth + 1)}`);
  const [open, close] = isList ? "[]" : "{}";
  const line = `${open}${items.join(", ")}${close}`;
  return line.length < 72 && !line.includes("\n") ? line : `${open}\n${items.map((item) => `${inner}${item},\n`).join("")}${end}${close}`;
}

const OPENAI = ["model", "messages", "prompt", "temperature", "top_p", "max_tokens", "presence_penalty", "frequency_penalty", "seed", "stop", "tools", "tool_choice", "logprobs", "top_logprobs", "reasoning_effort"];

function pythonCode(isChat, body, keyRequired) {
  const known = isChat ? [...OPENAI, "response_format"] : OPENAI;
  const extra = Object.fromEntries(Object.entries(body).filter(([name]) => !known.includes(name)));
  const lines = Object.entries(body).filter(([name]) => known.includes(name)).map(([name, value]) => `    ${name}=${python(value, 1)},`);
  if (Object.keys(extra).length) lines.push(`    extra_body=${python(extra, 1)},`);
  return [
    ...(keyRequired ? ["import os", ""] : []),
    "from openai import OpenAI",
    "",
    `client = OpenAI(base_url=${JSON.stringify(`${location.origin}/v1`)}, api_key=${keyRequired ? 'os.environ["BLAZR_API_KEY"]' : '"none"'})`,
    `stream = client.${isChat ? "chat.completions" : "completions"}.create(`,
    ...lines,
    "    stream=True,",
    ")",
    "for chunk in stream:",
    "    if chunk.choices:",
    `        print(chunk.choices[0].${isChat ? "delta.content" : "text"} or "", end="", flush=True)`,
    "print()",
  ].join("\n");
}

function javascriptCode(path, isChat, body, keyRequired) {
  return [
    `const response = await fetch(${JSON.stringify(location.origin + path)}, {`,
    '  method: "POST",',
    `  headers: { "Content-Type": "application/json"${keyRequired ? ", Authorization: `Bearer ${process.env.BLAZR_API_KEY}`" : ""} },`,
    `  body: JSON.stringify(${indent(JSON.stringify({ ...body, stream: true }, null, 2), "  ")}),`,
    "});",
    "if (!response.ok) throw new Error(await response.text());",
    'let rest = "";',
    "for await (const part of response.body.pipeThrough(new TextDecoderStream())) {",
    '  const lines = (rest + part).split("\\n");',
    "  rest = lines.pop();",
    "  for (const line of lines) {",
    '    if (!line.startsWith("data: ") || line === "data: [DONE]") continue;',
    "    const { choices } = JSON.parse(line.slice(6));",
    `    process.stdout.write(choices?.[0]?.${isChat ? "delta?.content" : "text"} ?? "");`,
    "  }",
    "}",
  ].join("\n");
}

/** The code of one language. */
export function codeOf(language, isChat, body, keyRequired) {
  const path = isChat ? "/v1/chat/completions" : "/v1/completions";
  if (language === "python") return pythonCode(isChat, body, keyRequired);
  if (language === "javascript") return javascriptCode(path, isChat, body, keyRequired);
  return [
    `curl -N ${location.origin}${path}`,
    ...(keyRequired ? ['-H "Authorization: Bearer $BLAZR_API_KEY"'] : []),
    '-H "Content-Type: application/json"',
    `-d ${shellQuote(JSON.stringify({ ...body, stream: true }, null, 1))}`,
  ].join(" \\\n  ");
}

/** Code without the contents of pictures. */
export const shortened = (code) => code.replace(/(data:image\/[a-z]+;base64,)([A-Za-z0-9+/=]+)/g, (whole, head) => (whole.length > MAX_URL ? `${whole.slice(0, MAX_URL)}…` : whole));
