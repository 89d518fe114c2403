// What keeps itself fresh: nothing is asked while nobody looks, and nothing that a person is at is taken away.
(() => {
  const polls = (element) => element.matches("[data-live]");
  const lost = () => document.getElementById("lost");

  Idiomorph.defaults.callbacks.beforeNodeMorphed = (old, fresh) =>
    !(old instanceof Element && old.matches("[data-keep]") && fresh instanceof Element && old.id === fresh.id);
  Idiomorph.defaults.callbacks.beforeAttributeUpdated = (name, element) =>
    !(name === "open" && element instanceof HTMLDetailsElement);

  document.addEventListener("htmx:beforeRequest", (event) => {
    if (document.hidden && polls(event.detail.elt)) event.preventDefault();
  });
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) document.querySelectorAll("[data-live]").forEach((live) => htmx.trigger(live, "refresh"));
  });
  document.addEventListener("htmx:afterRequest", (event) => (lost().hidden = event.detail.successful === true));

  const dark = () => {
    const chosen = document.documentElement.dataset.theme;
    return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  };
  const toggle = document.getElementById("theme");
  const label = () => {
    toggle.textContent = dark() ? "Light" : "Dark";
    toggle.setAttribute("aria-label", dark() ? "Switch to light colours" : "Switch to dark colours");
  };
  toggle.addEventListener("click", () => {
    const chosen = dark() ? "light" : "dark";
    document.documentElement.dataset.theme = chosen;
    localStorage.setItem("theme", chosen);
    label();
    document.dispatchEvent(new Event("farm:theme"));
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    label();
    document.dispatchEvent(new Event("farm:theme"));
  });
  label();
})();
