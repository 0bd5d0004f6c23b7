// Toggles of the navigation are arrows without a name: they get that of the page whose children they show.
document.addEventListener("DOMContentLoaded", () => {
  for (const toggle of document.querySelectorAll("nav summary")) {
    const page = toggle.closest("li")?.querySelector("a");
    toggle.setAttribute("aria-label", `Pages below ${page ? page.textContent.trim() : "this one"}`);
  }
});
