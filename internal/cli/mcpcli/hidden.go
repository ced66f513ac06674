package mcpcli

import (
	"fmt"
	"io"
	"os"

	"golang.org/x/term"
)

// readHidden reads a line without echo. Without a terminal, it reads normally.
func readHidden(in io.Reader, out io.Writer) (string, error) {
	f, ok := in.(*os.File)
	if !ok || !isTerminal(f) {
		return (&app{Env: Env{In: in}}).line(false)
	}
	defer fmt.Fprintln(out)
	b, err := term.ReadPassword(int(f.Fd()))
	return string(b), err
}
