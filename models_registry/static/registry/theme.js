// Runs before the page is drawn, so that it never flashes in the other theme, nor with what app.css hides where no
// scripts run.
// The choice is kept in this browser; without one the system's preference holds.
(() => {
  document.documentElement.dataset.scripts = "";
  const system = matchMedia("(prefers-color-scheme: dark)");
  const stored = () => {
    try {
      return localStorage.getItem("blazr-theme");
    } catch {
      return null;
    }
  };
  const show = (theme) => {
    document.documentElement.dataset.theme = theme;
    document.documentElement.dataset.bsTheme = theme;
  };
  const apply = () => show(stored() || (system.matches ? "dark" : "light"));
  apply();
  system.addEventListener("change", apply);
  addEventListener("DOMContentLoaded", () => {
    for (const button of document.querySelectorAll("[data-theme-toggle]")) {
      button.hidden = false;
      button.addEventListener("click", () => {
        const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
        try {
          localStorage.setItem("blazr-theme", next);
        } catch {
          // Storage is off: the choice holds for this page.
        }
        show(next);
      });
    }
  });
})();
