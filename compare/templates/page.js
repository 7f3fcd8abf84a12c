"use strict";
// Light or dark: what the system says, until the button says otherwise.
const root = document.documentElement;
const button = document.getElementById("theme");
const system = matchMedia("(prefers-color-scheme: dark)");
function theme(chosen) {
  const dark = chosen ? chosen === "dark" : system.matches;
  if (chosen) root.dataset.theme = chosen;
  button.textContent = dark ? "Light" : "Dark";
  button.setAttribute("aria-label", `Switch to ${dark ? "light" : "dark"} colours`);
  return dark;
}
let chosen;
try { chosen = localStorage.getItem("theme"); } catch { /* a browser that keeps nothing for files */ }
theme(chosen);
button.hidden = false;
system.addEventListener("change", () => theme(root.dataset.theme));
button.addEventListener("click", () => {
  const next = button.textContent.toLowerCase();
  theme(next);
  try { localStorage.setItem("theme", next); } catch { /* as above */ }
});

// The rung is in the address, as softmax.html#fused; the switch itself is radio buttons and CSS.
function fromAddress() {
  const rung = document.getElementById("rung-" + decodeURIComponent(location.hash.slice(1)));
  if (rung) rung.checked = true;
}
fromAddress();
addEventListener("hashchange", fromAddress);
for (const rung of document.getElementsByName("rung"))
  rung.addEventListener("change", () => history.replaceState(null, "", "#" + rung.value));
