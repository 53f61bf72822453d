// Before anything is painted: the colours that the person chose, so that the page does not flash.
(() => {
  try {
    const chosen = localStorage.getItem("assay.theme");
    if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
  } catch {
    // Storage may be refused; the system's colours will do.
  }
})();
