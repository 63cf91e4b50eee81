// The overview's rate of tokens over the last minute that the page was open; the server draws everything else.
import { $ } from "./kit.js";

const HISTORY = 60;
const rates = [];

function draw() {
  rates.push(Number($("#rate").textContent) || 0);
  if (rates.length > HISTORY) rates.shift();
  const top = Math.max(1, ...rates);
  const line = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
  line.setAttribute("points", rates.map((rate, i) => `${HISTORY - rates.length + i},${(7.5 - (rate / top) * 7).toFixed(2)}`).join(" "));
  line.setAttribute("vector-effect", "non-scaling-stroke");
  $("#rate-history").replaceChildren(line);
}

draw();
setInterval(draw, 1000);
