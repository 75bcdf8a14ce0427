package console

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// scrub moves the slider to 200 random places, and tells how many ms each took, from the input to
// the end of the frame that shows it. Every twentieth time it rests, so that what is only read at
// rest is read, too.
const scrub = `(async () => {
	const slider = document.querySelector(".dvr-slider"), took = [];
	const pause = ms => new Promise(done => setTimeout(done, ms));
	const frame = () => new Promise(done => requestAnimationFrame(() => { const { port1, port2 } = new MessageChannel(); port1.onmessage = done; port2.postMessage(0); }));
	let seed = 1;
	for (let i = 0; i < 200; i++) {
		seed = seed * 48271 % 2147483647;
		await pause(i % 20 === 19 ? 400 : seed % 17);
		slider.value = String(1 + seed % slider.max);
		const began = performance.now();
		slider.dispatchEvent(new Event("input", {bubbles: true}));
		await frame();
		took.push(performance.now() - began);
	}
	return took;
})()`

// BenchmarkScrub measures the page of a run of 10,000 events: ms until it can be scrubbed, and from
// a move of the slider to the frame that shows it, with each tab.
func BenchmarkScrub(b *testing.B) {
	g := serve(b)
	run := g.sums(b, 10_000, false)
	g.state(run, "done")
	p := g.open()
	b.Run("open", func(b *testing.B) {
		for b.Loop() {
			p.visit("/runs/" + run)
			p.until("all is read", edge+` === "■ Ended" && `+moment+" >= 10000")
		}
		b.ReportMetric(value[float64](p, "performance.now()"), "ms")
		b.ReportMetric(value[float64](p, latest), "events")
	})
	for i, name := range []string{"conversation", "states", "memory", "request", "raw", "usage"} {
		b.Run(name, func(b *testing.B) {
			p.key(fmt.Sprint(i + 1))
			p.until("the tab is shown", fmt.Sprintf(`!document.querySelector("#panel-%s").hidden`, name))
			var took []float64
			for b.Loop() {
				took = append(took, value[[]float64](p, scrub)...)
			}
			require.NotEmpty(b, took)
			slices.Sort(took)
			b.ReportMetric(0, "ns/op") // it is mostly pauses
			b.ReportMetric(took[len(took)/2], "p50-ms")
			b.ReportMetric(took[len(took)*95/100], "p95-ms")
			b.ReportMetric(took[len(took)-1], "max-ms")
		})
	}
}
