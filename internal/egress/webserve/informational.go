package webserve

import "net/http"

// WithoutInformational returns a writer to w that drops informational responses, which no program needs. A proxy writes them
// in a goroutine of its transport, while another one that reads the body may write 100 Continue: both would
// use the buffer of the connection.
func WithoutInformational(w http.ResponseWriter) http.ResponseWriter { return withoutInformational{w} }

type withoutInformational struct{ http.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (w withoutInformational) WriteHeader(status int) {
	if status < http.StatusContinue || status >= http.StatusOK {
		w.ResponseWriter.WriteHeader(status)
	}
}

// Unwrap is for http.ResponseController.
func (w withoutInformational) Unwrap() http.ResponseWriter { return w.ResponseWriter }
