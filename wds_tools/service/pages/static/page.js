// What works without this file too: everything but live figures, copying, sliders, and the keys for the next and previous page.
"use strict";

const POLL_MILLISECONDS = 2000;
const TIMEOUT_MILLISECONDS = 8000;

// The page is rendered again by the server, which escapes all values, and the parts that changed are replaced.
async function refresh() {
  const response = await fetch(location.href, {
    headers: { Accept: "text/html" },
    signal: AbortSignal.timeout(TIMEOUT_MILLISECONDS),
  });
  if (!response.ok) return;
  const fresh = new DOMParser().parseFromString(await response.text(), "text/html");
  for (const part of document.querySelectorAll("[data-live]")) {
    const other = fresh.querySelector(`[data-live="${part.dataset.live}"]`);
    if (other && !part.isEqualNode(other) && !part.contains(document.activeElement)) {
      part.replaceWith(document.importNode(other, true));
    }
  }
}

async function poll() {
  if (!document.querySelector("[data-live]:not([data-final])")) return;
  if (!document.hidden) {
    try {
      await refresh();
      document.body.classList.remove("offline");
    } catch {
      document.body.classList.add("offline");
    }
  }
  setTimeout(poll, POLL_MILLISECONDS);
}

setTimeout(poll, POLL_MILLISECONDS);

for (const button of document.querySelectorAll("[data-copy]")) {
  button.hidden = !navigator.clipboard; // which only secure contexts have; the text can be selected
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(document.getElementById(button.dataset.copy).textContent);
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
}

for (const slider of document.querySelectorAll("[data-opacity]")) {
  const layer = document.getElementById(slider.dataset.opacity);
  const show = () => layer.setAttribute("opacity", slider.value);
  slider.hidden = false;
  slider.addEventListener("input", show);
  show(); // a browser may have kept the value of an earlier visit
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, pre, .scroll")) return;
  const rel = { ArrowLeft: "prev", ArrowRight: "next", Escape: "up" }[event.key];
  const link = rel && document.querySelector(`main a[rel="${rel}"]`);
  if (link) link.click();
  const where = event.key === "/" && document.getElementById("where");
  if (where) {
    event.preventDefault();
    where.focus();
  }
});
