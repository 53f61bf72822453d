// Set the user's colors before the first paint, so that the page does not flash.
(() => {
  try {
    const chosen = localStorage.getItem("assay.theme");
    if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
  } catch {
    // The browser may deny storage; the system's colors then apply.
  }
})();
