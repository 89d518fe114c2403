// Tables are sorted by a click on a column's name; long ones have a field that leaves the rows with its words.
"use strict";
(() => {
  const valueOf = (row, column) => {
    const cell = row.cells[column];
    const text = cell.dataset.by ?? cell.textContent;
    const number = Number(text.replaceAll(",", ""));
    return text === "–" || text === "" ? null : Number.isNaN(number) ? text : number;
  };
  const compare = (a, b) => {
    if (a === null || b === null) return (a === null) - (b === null); // what has no value comes last
    return typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
  };

  for (const table of document.querySelectorAll("main table")) {
    if (table.tBodies[0].rows.length < 2) continue;
    for (const [column, head] of [...table.tHead.rows[0].cells].entries()) {
      const button = document.createElement("button");
      button.type = "button";
      button.setAttribute("aria-label", `Sort by ${head.textContent}`);
      head.append(button); // beside the name, which browsers repeat on each sheet of paper, as they do no button
      head.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const rows = [...table.tBodies[0].rows].map((row) => [valueOf(row, column), row]);
        rows.sort(([a], [b]) => (down && a !== null && b !== null ? compare(b, a) : compare(a, b)));
        table.tBodies[0].append(...rows.map(([, row]) => row));
      });
    }
  }

  for (const box of document.querySelectorAll(".table.long")) {
    const [field, told] = [box.querySelector("input"), box.querySelector("output")];
    const rows = [...box.querySelector("tbody").rows];
    field.addEventListener("input", () => {
      const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
      let left = 0;
      for (const row of rows) {
        const text = row.textContent.toLowerCase();
        row.hidden = !words.every((word) => text.includes(word));
        left += !row.hidden;
      }
      told.textContent = words.length ? `${left.toLocaleString("en")} of ${rows.length.toLocaleString("en")} rows` : `${rows.length.toLocaleString("en")} rows`;
    });
  }

  // What is folded is printed all the same.
  addEventListener("beforeprint", () => {
    for (const one of document.querySelectorAll("details")) one.open = true;
  });
})();
