// Light or dark as somebody chose it here; before the page is drawn, so that nothing flashes or moves.
(() => {
  document.documentElement.classList.add("js");
  const chosen = localStorage.getItem("theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
