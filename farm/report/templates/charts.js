// Draws the figures of a page with Plotly: each when it comes into view, in the colours of the page, and not on paper.
//
// A place for a figure is <div class="figure" data-figure="ID" hidden> beside an <img class="drawing">; the element of that ID
// holds the figure's JSON. Where nothing can be drawn, the drawing stays.
"use strict";
(() => {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const drawn = new Set();

  // Without WebGL, points of many are drawn as the others are.
  const webgl = (() => {
    try {
      return Boolean(document.createElement("canvas").getContext("webgl"));
    } catch {
      return false;
    }
  })();

  // Names are written once for a figure; points have numbers into the lists of them.
  function withTexts(figure) {
    const names = figure.layout.meta.texts;
    for (const trace of figure.data) {
      if (trace.meta && trace.meta.texts) {
        const [first, ...rest] = trace.meta.texts;
        trace.text = first.map((_, n) => [first, ...rest].map((which, part) => names[part][which[n]]).join("<br>"));
      }
      if (trace.type === "scattergl" && !webgl) trace.type = "scatter";
      if (dark.matches && trace.meta?.dark) trace.marker.color = trace.meta.dark;
      if (trace.marker && dark.matches) trace.marker.opacity = Math.max(trace.marker.opacity, 0.75);
    }
    return figure;
  }

  function colours() {
    const style = getComputedStyle(document.documentElement);
    const of = (name) => style.getPropertyValue(name).trim();
    return { ink: of("--ink"), soft: of("--soft"), grid: of("--grid"), raised: of("--raised") };
  }

  function layoutOf(figure, place) {
    const { ink, soft, grid, raised } = colours();
    const narrow = place.clientWidth < 560;
    const axis = (own) => ({
      gridcolor: grid, zeroline: false, linecolor: ink, tickcolor: ink, ticks: "outside", automargin: true, ...own,
      title: { ...own.title, font: { size: 12 } },
    });
    return {
      ...figure.layout,
      xaxis: axis(figure.layout.xaxis),
      yaxis: axis(figure.layout.yaxis),
      font: { family: "system-ui, sans-serif", size: 12, color: ink },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      hoverlabel: { bgcolor: raised, bordercolor: ink, font: { color: ink }, align: "left", namelength: -1 },
      hovermode: "closest",
      margin: { l: 56, r: narrow ? 8 : 24, t: 12, b: 48 },
      legend: { orientation: "h", yref: "container", y: 0, yanchor: "bottom", x: 0, itemsizing: "constant" },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: soft, activecolor: ink },
    };
  }

  // Ticks are those of all points; where somebody looks closer, Plotly finds others.
  function keepTicks(place, layout, change) {
    for (const axis of ["xaxis", "yaxis"]) {
      if (layout[axis].dtick == null) continue;
      if (`${axis}.range[0]` in change) Plotly.relayout(place, { [`${axis}.dtick`]: null });
      if (change[`${axis}.autorange`]) Plotly.relayout(place, { [`${axis}.dtick`]: layout[axis].dtick });
    }
  }

  function draw(place) {
    const figure = withTexts(JSON.parse(document.getElementById(place.dataset.figure).textContent));
    place.hidden = false;
    const options = {
      responsive: true,
      displaylogo: false,
      // Nothing of a page goes to anybody: Plotly would offer to upload it.
      plotlyServerURL: "",
      modeBarButtonsToRemove: ["sendChartToCloud", "sendDataToCloud", "select2d", "lasso2d", "autoScale2d"],
      toImageButtonOptions: { filename: place.dataset.figure },
    };
    Plotly.newPlot(place, figure.data, layoutOf(figure, place), options).then(
      () => {
        place.parentElement.classList.add("live");
        drawn.add(place);
        place.on("plotly_relayout", (change) => keepTicks(place, figure.layout, change));
      },
      () => forget(place),
    );
  }

  // Browsers keep few WebGL contexts: what is far away gives its own back.
  function forget(place) {
    Plotly.purge(place);
    drawn.delete(place);
    place.parentElement.classList.remove("live");
    place.hidden = true;
  }

  const seen = new IntersectionObserver(
    (changes) => {
      for (const { target, isIntersecting } of changes) {
        const place = target.querySelector(".figure");
        if (isIntersecting && !drawn.has(place)) draw(place);
        if (!isIntersecting && drawn.has(place)) forget(place);
      }
    },
    { rootMargin: "300px 0px" },
  );

  function start(root = document) {
    for (const place of root.querySelectorAll(".figure[data-figure]")) seen.observe(place.parentElement);
  }

  dark.addEventListener("change", () => {
    for (const place of [...drawn]) {
      forget(place);
      draw(place);
    }
  });
  window.farmCharts = { start };
  start();
})();
