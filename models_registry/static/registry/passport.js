// The passport of a model: make one, follow it, cancel it; promote the model, and say which aliases demand a passport.
import { $, act, call, pageData, poll, redrawParts, toast } from "./kit.js";
import { promotions } from "./promote.js";

const base = `/registry/checkpoints/${pageData("detail").id}/passports`;
const redrawPassport = () => redrawParts("passport");

async function follow() {
  const id = $("#passport").dataset.running;
  if (!id) return;
  const row = await call("GET", `/registry/passports/${id}`);
  if (row.state === "running") {
    $("#passport [data-stage]").textContent = row.stage;
    $("#passport [data-percent]").textContent = `${Math.round(row.progress * 100)} %`;
    $("#passport progress").value = row.progress;
    return;
  }
  $("#passport").dataset.running = "";
  await redrawPassport();
  if (row.state === "done") toast("The passport is made.");
  else toast(row.reason, row.state === "failed" ? "bad" : "good");
}

const followSoon = poll(follow, 1000);

$("#make-passport")?.addEventListener("click", (event) =>
  act(event.target, async () => {
    const row = await call("POST", base);
    await redrawPassport();
    $("#passport").dataset.running = row.id;
    followSoon();
  }),
);

$("#passport").addEventListener("click", (event) => {
  const button = event.target.closest("[data-cancel-passport]");
  if (button)
    act(button, async () => {
      await call("POST", `/registry/passports/${button.dataset.cancelPassport}/cancel`);
      followSoon();
    });
});

$("#passport").addEventListener("change", (event) => {
  const box = event.target.closest("[data-demand]");
  if (!box) return;
  act(box, async () => {
    try {
      await call("PATCH", `/registry/aliases/${encodeURIComponent(box.dataset.demand)}`, { demands_passport: box.checked });
    } catch (error) {
      box.checked = !box.checked;
      throw error;
    }
  });
});

promotions(redrawPassport);
