// The Geometry page alone, without what needs Python: files of one's own, other rules and potentials, other sizes, many seeds.

import { startGeometry } from "./static/geometry.js";

const form = document.getElementById("geometry-form");
form.querySelector("option[value=file]").remove();
for (const name of ["n", "T", "d", "rule", "potential"]) form.elements[name].closest("label").hidden = true;
for (const id of ["save-npz", "show-python", "run-seeds"]) document.getElementById(id).hidden = true;
document.getElementById("geometry").hidden = false;
startGeometry();
