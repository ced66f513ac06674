package cli

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/term"

	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

// maxFigures bounds the figures that a run saves.
const maxFigures = 100

// terminal writes the output of a box through, byte for byte, and saves figures. It
// implements client.Sink.
type terminal struct {
	app     *app
	figures string // directory; "" for none
	values  bool   // print the value of the last expression
	saved   int
	last    int // number of the last figure's name
}

func (t *terminal) Output(ch protocol.Channel, p []byte) {
	// Main reports write errors.
	if ch == protocol.Stderr {
		t.app.Err.Write(p)
	} else {
		t.app.Out.Write(p)
	}
}

// images are the formats that are saved, best first.
var images = []struct{ mime, ext string }{
	{"image/png", "png"}, {"image/jpeg", "jpg"}, {"image/gif", "gif"}, {"image/webp", "webp"}, {"image/svg+xml", "svg"},
}

func (t *terminal) Display(d protocol.Display) {
	for _, i := range images {
		text, ok := d.Data[i.mime]
		if !ok {
			continue
		}
		if t.figures == "" {
			return
		}
		if err := t.save(text, i.ext); err != nil {
			t.app.note("glovebox: warning: save a figure: %s", printable(err.Error()))
		}
		return
	}
	if text := d.Data["text/plain"]; text != "" && (t.values || !d.Result) {
		fmt.Fprintln(t.app.Out, strings.TrimRight(text, "\n"))
	}
}

// save writes a figure under the next free name.
func (t *terminal) save(text, ext string) error {
	data := []byte(text)
	if ext != "svg" {
		var err error
		if data, err = base64.StdEncoding.DecodeString(strings.Join(strings.Fields(text), "")); err != nil {
			return err
		}
	}
	if t.saved++; t.saved > maxFigures {
		return fmt.Errorf("more than %d figures", maxFigures)
	}
	if err := os.MkdirAll(t.figures, 0o755); err != nil {
		return err
	}
	for {
		t.last++
		path := filepath.Join(t.figures, fmt.Sprintf("figure-%d.%s", t.last, ext))
		f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return err
		}
		_, err = f.Write(data)
		if err = errors.Join(err, f.Close()); err == nil {
			t.app.note("glovebox: saved %s", path)
		}
		return err
	}
}

// onTerminal reports whether a stream is a terminal.
func onTerminal(stream any) bool {
	f, ok := stream.(interface{ Fd() uintptr })
	return ok && term.IsTerminal(int(f.Fd()))
}
