"use strict";
// A step is a form, and works without this. While it is being done its button says so.
for (const form of document.querySelectorAll("form.steps")) {
  form.addEventListener("submit", () => {
    const button = form.querySelector("button");
    button.disabled = true;
    button.textContent += " …";
    form.setAttribute("aria-busy", "true");
  });
}
