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
  const target = document.getElementById(form.dataset.draw);
  let timer, number = 0;
  const draw = async () => {
    const mine = ++number;
    const answer = await fetch(`${form.dataset.from}?${new URLSearchParams(new FormData(form))}`);
    const html = await answer.text();
    if (mine === number) target.innerHTML = html;
  };
  form.addEventListener("input", (event) => {
    const shown = form.querySelector(`output[for="${event.target.id}"]`);
    if (shown) shown.textContent = event.target.value;
    clearTimeout(timer);
    timer = setTimeout(draw, 150);
  });
});
