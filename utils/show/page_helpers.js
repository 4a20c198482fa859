function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children.filter((child) => child !== null));
  return element;
}

// Replaces control characters by visible signs.
function visible(text) {
  const picture = (control) => String.fromCharCode(0x2400 + control.charCodeAt(0));
  return text.replace(/[\0-\x08\x0b\x0c\x0e-\x1f]/g, picture);
}

// A text of a model or a user, isolated so that its direction marks do not affect the page.
function written(text, tag = "div", more = "") {
  return make(tag, { dir: "auto", class: "written " + more }, visible(text));
}
