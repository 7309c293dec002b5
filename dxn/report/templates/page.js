"use strict";
// Everything works without this script; it adds a button to copy commands, and the sliders.
for (const button of document.querySelectorAll("button.copy")) {
  if (!navigator.clipboard) continue;
  button.hidden = false;
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(button.parentElement.querySelector("code").textContent);
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
}
for (const slider of document.querySelectorAll(".slider")) {
  const lines = JSON.parse(slider.dataset.lines);
  const input = slider.querySelector("input");
  const output = slider.querySelector("output");
  const show = () => {
    const i = Number(input.value);
    const parts = Object.entries(lines).map(([name, values]) =>
      `${name} ${values[i] === null ? "–" : `${(100 * values[i]).toFixed(1)}%`}`);
    output.textContent = `at ${(i / 100).toFixed(2)}: ${parts.join(", ")}`;
    input.setAttribute("aria-valuetext", output.textContent);
  };
  slider.hidden = false;
  input.addEventListener("input", show);
  show();
}
