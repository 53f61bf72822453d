/** Color scheme: light, dark, or the system's. */

const NAME = "assay.theme";
export const THEMES = ["auto", "light", "dark"];

export function kept(name) {
  try {
    return localStorage.getItem(name);
  } catch {
    return null;
  }
}

export function keep(name, value) {
  try {
    localStorage.setItem(name, value);
  } catch {
    // The browser may deny storage; the choice then lasts as long as the page.
  }
}

export function chosenTheme() {
  return document.documentElement.dataset.theme ?? "auto";
}

export function chooseTheme(theme) {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  keep(NAME, theme);
  document.dispatchEvent(new CustomEvent("assay:theme"));
}

export function nextTheme() {
  chooseTheme(THEMES[(THEMES.indexOf(chosenTheme()) + 1) % THEMES.length]);
}
