const {specs, config} = JSON.parse(document.getElementById("charts").textContent);
const theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
const options = {actions: false, renderer: "svg", config, tooltip: {theme}};
(async () => {
  for (const [name, spec] of Object.entries(specs)) await vegaEmbed(document.getElementById(name), spec, options);
  document.body.dataset.drawn = "all";
})();
