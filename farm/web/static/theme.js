// Light or dark as somebody chose it here; before the page is drawn, so that it does not flash.
(() => {
  const chosen = localStorage.getItem("theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
