//go:build linux

package main

import (
	"archive/zip"
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/http"
)

// outside is a web server on loopback for the scenario egress: small answers, one without
// an end, and a package index with one wheel.
type outside struct {
	server *http.Server
	port   int
}

// outsideHost is the name by which boxes reach outside.
const outsideHost = "files.example.org"

// serveOutside starts the server.
func serveOutside() (*outside, error) {
	const file = "benchwheel-1.0-py3-none-any.whl"
	packed, err := wheel()
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/small", func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("ok\n")) })
	mux.HandleFunc("/endless", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", fmt.Sprint(int64(1)<<40))
		piece := make([]byte, 256<<10)
		for {
			if _, err := w.Write(piece); err != nil { // the client has enough
				return
			}
		}
	})
	mux.HandleFunc("/simple/benchwheel/", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(w, `<a href="/files/%s">%s</a>`, file, file)
	})
	mux.HandleFunc("/files/"+file, func(w http.ResponseWriter, _ *http.Request) { w.Write(packed) })
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	o := &outside{&http.Server{Handler: mux}, listener.Addr().(*net.TCPAddr).Port}
	go o.server.Serve(listener) // until close
	return o, nil
}

// close ends the server and its connections.
func (o *outside) close() { o.server.Close() }

// settings let boxes reach the server as port 80 of outsideHost, without a limit of bytes.
func (o *outside) settings() []string {
	return []string{
		"GLOVEBOX_NETWORK=http://" + outsideHost,
		fmt.Sprintf("GLOVEBOX_EGRESS_PIN=%s:80=127.0.0.1:%d", outsideHost, o.port),
		"GLOVEBOX_EGRESS_MAX_MB_PER_MINUTE=0",
	}
}

// wheel returns a package of 200 Python modules, 1 MB of source text.
func wheel() ([]byte, error) {
	const info = "benchwheel-1.0.dist-info/"
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	var failed error
	record := info + "RECORD,,\n"
	file := func(name, content string) {
		record += name + ",,\n"
		w, err := z.Create(name)
		if err == nil {
			_, err = w.Write([]byte(content))
		}
		failed = errors.Join(failed, err)
	}
	for i := range 200 {
		var source bytes.Buffer
		for j := range 100 {
			fmt.Fprintf(&source, "def function_%d(x):\n    return x * %d + %d\n", j, i, j)
		}
		file(fmt.Sprintf("benchwheel/m%d.py", i), source.String())
	}
	file(info+"METADATA", "Metadata-Version: 2.1\nName: benchwheel\nVersion: 1.0\n")
	file(info+"WHEEL", "Wheel-Version: 1.0\nGenerator: bench\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
	file(info+"RECORD", record)
	failed = errors.Join(failed, z.Close()) // completes b
	return b.Bytes(), failed
}
