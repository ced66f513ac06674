// Command conformance runs the official MCP conformance suite against the server with
// the suite's fixtures, against the shipped program, and against a client built on the
// client kit.
//
// scripts/conformance installs the suite and runs this command; docs/conformance.md has
// the results.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/glovebox-dev/glovebox/conformance/fixtures"
	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/server"
	"github.com/glovebox-dev/glovebox/internal/server/tools"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "conformance: error:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("conformance", flag.ContinueOnError)
	dir := flags.String("dir", "conformance", "directory with the suite's node_modules and the baseline")
	binary := flags.String("glovebox", "bin/glovebox", "the program that is shipped")
	program := flags.String("client", "", "the client that is made of the kit, a program")
	doc := flags.String("doc", "", "file whose table to write anew")
	serve := flags.Bool("serve", false, "only serve the test build, at the address that is printed, until interrupted")
	one := flags.String("scenario", "", "run this scenario alone, against the test build or the client, and show all that the suite says")
	version := flags.String("spec-version", "", "with -scenario: the revision to run it at")
	verbose := flags.Bool("v", false, "log what the test build does")
	if err := flags.Parse(args); err != nil {
		return err
	}
	build, err := startBuild(*verbose)
	if err != nil {
		return err
	}
	defer build.stop()
	if *serve {
		fmt.Println(build.url)
		<-ctx.Done()
		return nil
	}
	s, err := openSuite(*dir)
	if err != nil {
		return err
	}
	defer s.close()
	if *one != "" {
		of := serverSubject(testBuild, build.url)
		if client, err := s.isForClients(ctx, *one); err != nil {
			return err
		} else if client {
			of = kit(*program)
		}
		return s.show(ctx, of, *one, *version)
	}
	all, err := s.judge(ctx, build, *binary, *program)
	if err != nil {
		return err
	}
	fmt.Print(all.table())
	if *doc != "" {
		if err := all.writeDoc(*doc); err != nil {
			return err
		}
	}
	passed, failed := all.count()
	fmt.Printf("%d passed, %d failed\n", passed, failed)
	if failed > 0 {
		return fmt.Errorf("%d scenarios failed", failed)
	}
	return nil
}

// A build is the server with the suite's fixtures.
type build struct {
	url  string
	stop func()

	mu     sync.Mutex
	direct map[string]int // guarded by mu: calls done past the SDK, by tool
}

// startBuild serves on a free port of loopback. It lists the catalogue but has no
// boxes.
func startBuild(verbose bool) (*build, error) {
	log := slog.New(slog.DiscardHandler)
	if verbose {
		log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	b := &build{direct: make(map[string]int)}
	f := fixtures.New()
	srv := server.New(server.Options{
		Version: "conformance", Log: log,
		Tools:  tools.Deps{Boxes: box.New(box.DefaultConfig(), box.Parts{}), Log: log},
		Extend: f.Extension(),
		Limits: server.Limits{Grace: time.Second},
		Observe: func(o server.Observation) {
			if o.Direct {
				b.mu.Lock()
				b.direct[o.Tool]++
				b.mu.Unlock()
			}
		},
	})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	b.url = "http://" + ln.Addr().String() + "/mcp"
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 2)
	go func() { ended <- srv.Serve(ctx, ln) }()
	go func() {
		f.Watch(ctx)
		ended <- nil
	}()
	b.stop = func() {
		cancel()
		for range 2 {
			if err := <-ended; err != nil {
				log.Error("stop the test build", "err", err)
			}
		}
	}
	return b, nil
}

// directCalls returns the number and the tools of the calls that bypassed the SDK.
func (b *build) directCalls() (n int, names string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var list []string
	for name, calls := range b.direct {
		n += calls
		list = append(list, name)
	}
	slices.Sort(list)
	return n, strings.Join(list, ", ")
}
