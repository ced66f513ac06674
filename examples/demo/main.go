// Command demo analyses data in a box, as an agent would: it starts the server, connects
// as an ordinary MCP client over HTTP and calls tools. It uses only the program, no
// package of Glovebox. It exits non-zero if a step fails. Run it with: make demo
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"time"
)

func main() {
	binary := flag.String("glovebox", "bin/glovebox", "the program")
	data := flag.String("data", "examples/demo/data/seattle-weather.csv", "the data set")
	out := flag.String("out", "demo-out", "the directory that the figure goes to")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	if err := demo(ctx, *binary, *data, *out); err != nil {
		fmt.Fprintf(os.Stderr, "\ndemo: error: %v\n", err)
		stop()
		os.Exit(1)
	}
}

// demo runs all steps until one fails.
func demo(ctx context.Context, binary, data, out string) (err error) {
	csv, err := os.ReadFile(data)
	if err != nil {
		return err
	}
	if out, err = filepath.Abs(out); err != nil {
		return err
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	fmt.Print("An analyst's work in a box: four years of weather in Seattle\n\n")
	d := &run{begin: time.Now(), csv: csv, figure: filepath.Join(out, "seattle-weather.png")}
	defer func() { err = d.end(err) }()
	for _, s := range []step{
		{"start the server", func(ctx context.Context) (string, error) { return d.start(ctx, binary) }},
		{"connect over HTTP", d.connect},
		{"create a Python context", d.createContext},
		{"upload the data", d.upload},
		{"load it with pandas", d.load},
		{"group it by year", d.group},
		{"plot it, fetch the PNG", d.plot},
		{"fetch the summary file", d.download},
		{"a shell pipeline", d.shell},
		{"JavaScript", d.javascript},
		{"escape: a file of the host", d.escapeFile},
		{"escape: the network", d.escapeNetwork},
		{"escape: a fork bomb", d.escapeForkBomb},
		{"all still there?", d.aftermath},
		{"fork it, try another way", d.fork},
		{"a mistake, rolled back", d.rollBack},
		{"restart the server", d.restart},
	} {
		if err := d.step(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

// step is a step of the demo. do returns a line about the outcome.
type step struct {
	name string
	do   func(context.Context) (string, error)
}

func (r *run) step(ctx context.Context, s step) error {
	r.count++
	fmt.Printf("%2d  %-28s", r.count, s.name)
	begin := time.Now()
	line, err := s.do(ctx)
	if err != nil {
		fmt.Println("FAILED")
		return fmt.Errorf("%s: %w", s.name, err)
	}
	fmt.Printf("%6.2f s  %s\n", time.Since(begin).Seconds(), line)
	if r.block != "" {
		fmt.Printf("\n%s\n", r.block)
		r.block = ""
	}
	return nil
}
