//go:build linux

// Command scale measures how the engine of internal/engine/kube scales, without a cluster:
// replicas of it share thousands of boxes of a stand-in for the API server (kubesim). It
// prints a table and writes JSON. Run it with make bench-kube; docs/kubernetes.md has its
// figures.
//
// Requests and bytes are exact. Times are those of this machine, where the engines and the
// stand-in share the processors; processor time is that of both.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// runLimit bounds a whole run. It takes about six minutes on two idle processors.
const runLimit = 30 * time.Minute

// fewest is the number of boxes with which each step of a measurement has some.
const fewest = 20

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	switch err := command(ctx, os.Args[1:], os.Stdout, os.Stderr); {
	case errors.Is(err, flag.ErrHelp):
		os.Exit(2)
	case err != nil:
		fmt.Fprintln(os.Stderr, "scale: error:", err)
		os.Exit(1)
	}
}

func command(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("scale", flag.ContinueOnError)
	flags.SetOutput(stderr)
	sizes := flags.String("sizes", "1000,5000,10000", "numbers of boxes, separated by commas")
	file := flags.String("json", filepath.Join(".bench", "kube.json"), "file for the result as JSON")
	p := plan{replicas: 3, warm: 50}
	flags.DurationVar(&p.idle, "idle", time.Minute, "how long to watch the idle fleet")
	flags.IntVar(&p.bursts, "bursts", 5, "bursts of claims of warm Pods, at the last size")
	if err := flags.Parse(args); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, runLimit)
	defer cancel()
	var all []*result
	texts := strings.Split(*sizes, ",")
	for i, text := range texts {
		boxes, err := strconv.Atoi(strings.TrimSpace(text))
		if err != nil || boxes < fewest {
			return fmt.Errorf("parse the size %q: want a number of boxes from %d on", text, fewest)
		}
		fmt.Fprintf(stderr, "scale: %d boxes\n", boxes)
		p.claims = i == len(texts)-1
		r, err := p.measure(ctx, boxes, stderr)
		if err != nil {
			return fmt.Errorf("measure %d boxes: %w", boxes, err)
		}
		all = append(all, r)
	}
	if err := write(*file, all); err != nil {
		return err
	}
	_, err := io.WriteString(stdout, table(all))
	return err
}

// write writes the result as JSON.
func write(file string, all []*result) error {
	b, err := json.MarshalIndent(all, "", "  ")
	if err == nil {
		err = os.MkdirAll(filepath.Dir(file), 0o755)
	}
	if err == nil {
		err = os.WriteFile(file, append(b, '\n'), 0o644)
	}
	if err != nil {
		return fmt.Errorf("write the result: %w", err)
	}
	return nil
}
