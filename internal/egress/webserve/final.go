package webserve

import "net/http"

// Final returns a writer to w that drops informational responses, which no program needs. A proxy writes them
// in a goroutine of its transport, while another one that reads the body may write 100 Continue: both would
// use the buffer of the connection.
func Final(w http.ResponseWriter) http.ResponseWriter { return final{w} }

type final struct{ http.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (w final) WriteHeader(status int) {
	if status < http.StatusContinue || status >= http.StatusOK {
		w.ResponseWriter.WriteHeader(status)
	}
}

// Unwrap is for http.ResponseController.
func (w final) Unwrap() http.ResponseWriter { return w.ResponseWriter }
