"use strict";
function inspectorView() { return el("div"); }
