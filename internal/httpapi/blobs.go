package httpapi

import (
	"context"
	"net/http"
	"strconv"

	"github.com/moorebus/moorebus/internal/buildinfo"
	"github.com/moorebus/moorebus/internal/httpapi/route"
	"github.com/moorebus/moorebus/pkg/events"
)

// getBlob answers with what a reference points to. Who asks has to know its digest.
func (s *Server) getBlob(w http.ResponseWriter, r *http.Request) error {
	values, err := route.Parameters(r, "size")
	if err != nil {
		return err
	}
	size, err := strconv.Atoi(values["size"])
	if err != nil || size < 0 {
		return route.BadParameter("size: must be that of the reference")
	}
	digest := r.PathValue("sha256") // the key of every object
	data, err := s.control.Blob(r.Context(), events.Ref{Bucket: r.PathValue("bucket"), Key: digest, Size: size, SHA256: digest})
	if err != nil {
		return err
	}
	h := w.Header()
	h.Set("Content-Type", "application/octet-stream") // what it holds is not trusted
	h.Set("Content-Disposition", "attachment")
	h.Set("Content-Length", strconv.Itoa(len(data)))
	_, _ = w.Write(data) // a client that is gone needs no error
	return nil
}

func getVersion(_ context.Context, r *route.Request) (any, error) {
	_, err := route.Parameters(r.Request)
	return buildinfo.Read(), err
}
