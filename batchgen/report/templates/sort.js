"use strict";
// Makes the heads of tables buttons that sort their rows. Unknown values stay at the end.
(function () {
  function compare(a, b) {
    var x = a.dataset.v, y = b.dataset.v;
    if (x !== undefined && y !== undefined) return Number(x) - Number(y);
    return a.textContent.localeCompare(b.textContent, undefined, { numeric: true });
  }

  function sort(table, head) {
    var index = head.cellIndex;
    var isDescending = head.getAttribute("aria-sort") === "ascending";
    var body = table.tBodies[0];
    var isNumber = head.hasAttribute("data-number");
    var known = [], unknown = [];
    Array.from(body.rows).forEach(function (row) {
      var isKnown = !isNumber || row.cells[index].dataset.v !== undefined;
      (isKnown ? known : unknown).push(row);
    });
    known.sort(function (a, b) {
      return (isDescending ? -1 : 1) * compare(a.cells[index], b.cells[index]);
    });
    known.concat(unknown).forEach(function (row) { body.appendChild(row); });
    Array.from(head.parentNode.cells).forEach(function (cell) { cell.removeAttribute("aria-sort"); });
    head.setAttribute("aria-sort", isDescending ? "descending" : "ascending");
  }

  document.querySelectorAll("table.sortable").forEach(function (table) {
    Array.from(table.tHead.rows[0].cells).forEach(function (head) {
      var button = document.createElement("button");
      button.type = "button";
      button.textContent = head.textContent;
      button.addEventListener("click", function () { sort(table, head); });
      head.replaceChildren(button);
    });
  });
})();
