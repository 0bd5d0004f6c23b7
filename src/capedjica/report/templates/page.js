// Copy buttons, unfolding many parts at once, and printing: folded details are opened for print.
document.documentElement.classList.add("scripted");
document.querySelectorAll("[data-copy]").forEach((button) => {
  const source = document.getElementById(button.dataset.copy);
  const said = button.parentElement.querySelector("[role=status]");
  button.addEventListener("click", async () => {
    getSelection().selectAllChildren(source);
    try {
      await navigator.clipboard.writeText(source.innerText);
      said.textContent = "Copied.";
    } catch {
      said.textContent = "Selected: copy it with Ctrl+C.";
    }
  });
});
document.querySelectorAll("[data-unfold]").forEach((button) => {
  const words = button.textContent;
  button.addEventListener("click", () => {
    const open = button.getAttribute("aria-expanded") !== "true";
    document.querySelectorAll(`details.${button.dataset.unfold}`).forEach((part) => (part.open = open));
    button.setAttribute("aria-expanded", String(open));
    button.textContent = open ? words.replace("Show", "Hide") : words;
  });
});
const folded = new Set();
addEventListener("beforeprint", () => {
  document.querySelectorAll("details:not([open])").forEach((part) => {
    folded.add(part);
    part.open = true;
  });
});
addEventListener("afterprint", () => {
  folded.forEach((part) => (part.open = false));
  folded.clear();
});
