// The model page's "Will it fit": sliders beside the number fields. The server answers; htmx draws its newest answer.
import { $, $$ } from "./kit.js";

for (const slider of $$("[data-slides]")) {
  const field = $(`#${slider.dataset.slides}`);
  const stops = slider.dataset.stops.split(" ").map(Number);

  /** Put the slider at the last of its stops that isn't above the field's number. */
  const follow = () => {
    const at = stops.findLastIndex((stop) => stop <= Number(field.value));
    slider.value = Math.max(0, at);
    slider.setAttribute("aria-valuetext", field.value);
  };

  slider.max = stops.length - 1;
  slider.hidden = false;
  follow();
  field.addEventListener("input", follow);
  // Before the form hears of it, so that what is asked for is the new number.
  slider.addEventListener("input", () => {
    field.value = stops[slider.value];
    slider.setAttribute("aria-valuetext", field.value);
  });
}
