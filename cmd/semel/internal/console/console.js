"use strict";
// What the page shows is made by the server. This asks for the parts that change.
for (const part of document.querySelectorAll("[data-live]")) {
  const look = async () => {
    let wait = Number(part.dataset.every);
    if (!document.hidden && !part.contains(document.activeElement)) {
      try {
        const answer = await fetch(part.dataset.live);
        if (answer.status === 401) return location.reload();
        if (answer.ok) part.innerHTML = await answer.text();
        if (part.querySelector("[data-ended]")) return;
      } catch {
        wait = 5000; // the gateway is being started again, perhaps
      }
    }
    setTimeout(look, wait);
  };
  setTimeout(look, Number(part.dataset.every));
}
