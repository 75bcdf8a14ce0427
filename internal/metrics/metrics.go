// Package metrics keeps the numbers of a process and serves them to Prometheus. What there is
// to count is in package meter; docs/metrics.md is made of it.
//
// A [Registry] is bounded: no label has the id of a run, and a label whose values come from agents,
// tools or models has at most meter.MaxValues separate ones. Counting takes no lock.
package metrics

import (
	"context"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/moorebus/moorebus/internal/buildinfo"
	"github.com/moorebus/moorebus/internal/diskspace"
	"github.com/moorebus/moorebus/internal/feature/rows"
	"github.com/moorebus/moorebus/internal/meter"
)

const (
	// maxSeries is how many series a metric has at most. Beyond that all its labels from
	// outside have the value meter.Other.
	maxSeries = 2000
	// maxValue is the longest value of a label, in bytes.
	maxValue = 128
	// readTimeout bounds what a scrape asks of others.
	readTimeout = 3 * time.Second
)

// Registry keeps the numbers of a process. It is a [meter.Meter]. Make it with [New].
type Registry struct {
	prometheus *prometheus.Registry
	// families are in the order of the pages.
	families []*family
	of       map[*meter.Metric]*family

	mu      sync.Mutex
	readers []func(ctx context.Context, emit meter.Emit)
}

var _ meter.Meter = (*Registry)(nil)

// family is one metric. series has what was counted so far, and is replaced when there is more.
type family struct {
	metric *meter.Metric
	desc   *prometheus.Desc
	vec    interface {
		prometheus.Collector
		with(values []string) series
	}
	series atomic.Pointer[map[meter.Values]series]

	mu    sync.Mutex
	known [meter.MaxLabels]map[string]struct{}
}

// series adds to one counter or histogram.
type series func(float64)

type counters struct{ *prometheus.CounterVec }

func (c counters) with(values []string) series { return c.WithLabelValues(values...).Add }

type histograms struct{ *prometheus.HistogramVec }

func (h histograms) with(values []string) series { return h.WithLabelValues(values...).Observe }

// New returns a registry, which also has the numbers of the Go runtime and of the process.
func New() *Registry {
	r := &Registry{prometheus: prometheus.NewRegistry(), of: map[*meter.Metric]*family{}}
	for _, m := range rows.Metrics() {
		r.of[m] = newFamily(m)
		r.families = append(r.families, r.of[m])
	}
	r.prometheus.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), r)
	for _, result := range []string{"redriven", "ended"} {
		r.Add(meter.Stalls, 0, meter.Values{result}) // an increase from nothing would not be seen
	}
	build := buildinfo.Read()
	r.Read(func(_ context.Context, emit meter.Emit) {
		emit(meter.Build, 1, meter.Values{build.Version, strconv.Itoa(build.Revision)})
	})
	return r
}

func newFamily(m *meter.Metric) *family {
	names := make([]string, len(m.Labels))
	for i, l := range m.Labels {
		names[i] = l.Name
	}
	f := &family{metric: m, desc: prometheus.NewDesc(m.Name, m.Help, names, nil)}
	switch m.Kind {
	case meter.Counter:
		f.vec = counters{prometheus.NewCounterVec(prometheus.CounterOpts{Name: m.Name, Help: m.Help}, names)}
	case meter.Histogram:
		f.vec = histograms{prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: m.Name, Help: m.Help, Buckets: m.Buckets}, names)}
	case meter.Gauge:
	}
	none := map[meter.Values]series{}
	if f.vec != nil && len(names) == 0 {
		none[meter.Values{}] = f.vec.with(nil) // it is there, and 0, before anything happens
	}
	f.series.Store(&none)
	return f
}

// Add adds to a counter, or notes a value of a histogram.
func (r *Registry) Add(m *meter.Metric, value float64, of meter.Values) {
	f := r.of[m]
	add, known := (*f.series.Load())[of]
	if !known {
		add = f.newSeries(of)
	}
	add(value)
}

// newSeries returns the series of values that are not among the known ones.
func (f *family) newSeries(of meter.Values) series {
	f.mu.Lock()
	defer f.mu.Unlock()
	bounded := f.bounded(of)
	now := *f.series.Load()
	if len(now) >= maxSeries {
		for i, l := range f.metric.Labels {
			if l.Outside {
				bounded[i] = meter.Other
			}
		}
	}
	add, known := now[bounded]
	if !known {
		add = f.vec.with(bounded[:len(f.metric.Labels)])
		more := maps.Clone(now)
		more[bounded] = add
		f.series.Store(&more)
	}
	return add
}

// bounded returns the values as they are kept. The lock is held.
func (f *family) bounded(of meter.Values) meter.Values {
	for i, l := range f.metric.Labels {
		of[i] = clean(of[i])
		if !l.Outside {
			continue
		}
		if f.known[i] == nil {
			f.known[i] = map[string]struct{}{}
		}
		if _, known := f.known[i][of[i]]; known {
			continue
		}
		if len(f.known[i]) >= meter.MaxValues {
			of[i] = meter.Other
			continue
		}
		f.known[i][strings.Clone(of[i])] = struct{}{}
	}
	return of
}

// clean returns a value that a label may have. What is short and valid is not copied.
func clean(value string) string {
	if len(value) > maxValue {
		value = value[:maxValue]
	}
	if !utf8.ValidString(value) {
		value = strings.ToValidUTF8(value, "")
	}
	return value
}

// Read has read called at each scrape.
func (r *Registry) Read(read func(ctx context.Context, emit meter.Emit)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.readers = append(r.readers, read)
}

// Describe tells what is collected.
func (r *Registry) Describe(to chan<- *prometheus.Desc) {
	for _, f := range r.families {
		to <- f.desc
	}
}

// Collect collects what was counted, and what the readers tell.
func (r *Registry) Collect(to chan<- prometheus.Metric) {
	for _, f := range r.families {
		if f.vec != nil {
			f.vec.Collect(to)
		}
	}
	r.mu.Lock()
	readers := r.readers
	r.mu.Unlock()
	ctx, stop := context.WithTimeout(context.Background(), readTimeout)
	defer stop()
	type point struct {
		metric *meter.Metric
		values meter.Values
	}
	gauges := map[point]float64{}
	for _, read := range readers {
		read(ctx, func(m *meter.Metric, value float64, of meter.Values) {
			f := r.of[m]
			f.mu.Lock()
			at := point{m, f.bounded(of)}
			f.mu.Unlock()
			if known, is := gauges[at]; !is || known < value {
				gauges[at] = value
			}
		})
	}
	for at, value := range gauges {
		f := r.of[at.metric]
		to <- prometheus.MustNewConstMetric(f.desc, prometheus.GaugeValue, value, at.values[:len(f.metric.Labels)]...)
	}
}

// ReadDisk has each scrape tell of the disk with an embedded server's directory. full is
// embedded.Server.Full.
func (r *Registry) ReadDisk(dir string, full func() error) {
	r.Read(func(_ context.Context, emit meter.Emit) {
		if free, total, known := diskspace.Free(dir); known {
			emit(meter.DiskFree, float64(free), meter.Values{})
			emit(meter.DiskTotal, float64(total), meter.Values{})
		}
		stopped := 0.0
		if full() != nil {
			stopped = 1
		}
		emit(meter.DiskFull, stopped, meter.Values{})
	})
}

// ReadCertificates has each scrape say until when certificates are valid, by their names.
func (r *Registry) ReadCertificates(ends func() map[string]time.Time) {
	r.Read(func(_ context.Context, emit meter.Emit) {
		for name, end := range ends() {
			emit(meter.CertificateLeft, time.Until(end).Seconds(), meter.Values{name})
		}
	})
}

// Handler serves the numbers in the formats of Prometheus.
func (r *Registry) Handler() http.Handler {
	return promhttp.HandlerFor(r.prometheus, promhttp.HandlerOpts{})
}
