// Lists that a form filters: the page's address keeps the filters, and the server draws the list.

/**
 * Keep a form's filters in the page's address, and have its list drawn for them while they are typed, from its newest
 * page on. Other lists of the page keep their own. Returns a function that has it drawn now; given an address, for that.
 */
export function filterList(form, region, topic, after) {
  let timer;
  const show = (address) => {
    if (typeof address !== "string") {
      const query = new URLSearchParams(location.search);
      query.delete(after);
      for (const [name, value] of new FormData(form)) {
        if (value.trim()) query.set(name, value);
        else query.delete(name);
      }
      address = `${location.pathname}${query.size ? `?${query}` : ""}`;
    }
    history.replaceState(null, "", address);
    document.body.dispatchEvent(new CustomEvent(`live:${topic}`));
  };
  region.addEventListener("htmx:configRequest", (event) => (event.detail.path = location.pathname + location.search));
  form.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(show, 15); // one at a time: htmx queues the newest behind the one that is on its way
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    show();
  });
  return show;
}
