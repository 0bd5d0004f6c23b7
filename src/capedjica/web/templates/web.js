// Enhancements only: every page works without them.
document.documentElement.classList.add("scripted");
document.querySelectorAll("[data-live]").forEach((part) => {
  const source = new EventSource(part.dataset.live);
  source.onmessage = (event) => { part.innerHTML = event.data; };
  source.addEventListener("ended", () => source.close());
  source.addEventListener("locked", () => { source.close(); location.reload(); });
});
document.querySelectorAll("[data-reload]").forEach((part) => {
  setTimeout(() => location.replace(`${location.pathname}?watching`), 1000 * Number(part.dataset.reload));
});
document.querySelectorAll("form[data-draw]").forEach((form) => {
  let timer, number = 0;
  const draw = async (target, from, mine) => {
    const part = document.getElementById(target);
    part.setAttribute("aria-busy", "true");
    const answer = await fetch(`${from}?${new URLSearchParams(new FormData(form))}`);
    const html = await answer.text();
    if (mine !== number) return;
    if (answer.ok) part.innerHTML = html;
    part.removeAttribute("aria-busy");
  };
  const drawAll = async (mine) => {
    await draw(form.dataset.draw, form.dataset.from, mine);
    if (mine === number) timer = setTimeout(() => draw(form.dataset.then, form.dataset.thenFrom, mine), 500);
  };
  document.querySelector("form[data-predict]").addEventListener("submit", (event) => {
    event.preventDefault();
    clearTimeout(timer);
    draw(form.dataset.then, form.dataset.thenFrom, ++number);
  });
  form.addEventListener("input", (event) => {
    const shown = form.querySelector(`output[for="${event.target.id}"]`);
    if (shown) shown.textContent = event.target.value;
    clearTimeout(timer);
    const mine = ++number;
    timer = setTimeout(() => drawAll(mine), 150);
  });
});
