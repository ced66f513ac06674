package bridgecall

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

const usage = `usage: glovebox-tool SERVER.TOOL [NAME=VALUE]...   call a tool
       glovebox-tool SERVER.TOOL [-]               call it with a JSON object from standard input
       glovebox-tool --search [WORD]...            find tools
       glovebox-tool --describe SERVER[.TOOL]...   signatures and documentation
       glovebox-tool --schema SERVER[.TOOL]...     JSON schemas

With NAME=VALUE, standard input is read only if "-" is given as well.
The value goes to standard output: text as it is, everything else as JSON.
`

// Exit codes of glovebox-tool.
const (
	exitFailed = 1 // the tool ran and failed
	exitUsage  = 2
	exitRefuse = 3 // nothing was called, or nobody knows
)

// Main runs glovebox-tool with the arguments after its name and returns its exit code.
func Main(args []string) int {
	code, err := run(args, os.Stdin, os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "glovebox-tool:", err)
	}
	return code
}

func run(args []string, stdin *os.File, stdout io.Writer) (int, error) {
	if len(args) == 0 || args[0] == "-h" || args[0] == "--help" {
		fmt.Fprint(stdout, usage)
		if len(args) == 0 {
			return exitUsage, nil
		}
		return 0, nil
	}
	method, payload := "tool", map[string]any{"language": "shell"}
	key := "value"
	switch {
	case args[0] == "--search":
		method, key = "search", "line"
		payload["query"] = strings.Join(args[1:], " ")
	case args[0] == "--describe":
		method, key = "describe", "text"
		payload["names"] = args[1:]
	case args[0] == "--schema":
		method, key = "describe", "text"
		payload["names"], payload["detail"] = args[1:], "schema"
	case strings.HasPrefix(args[0], "-"):
		return exitUsage, fmt.Errorf("unknown flag %q; see glovebox-tool --help", args[0])
	default:
		payload["name"] = args[0]
		words := make(map[string]string)
		piped := len(args) == 1
		for _, arg := range args[1:] {
			if arg == "-" {
				piped = true
				continue
			}
			name, value, ok := strings.Cut(arg, "=")
			if !ok || name == "" {
				return exitUsage, fmt.Errorf("argument %q is not NAME=VALUE", arg)
			}
			if _, twice := words[name]; twice {
				return exitUsage, fmt.Errorf("argument %q is given twice; pass a list as JSON on standard input", name)
			}
			words[name] = value
		}
		if len(words) > 0 {
			payload["words"] = words // the host converts them to the types of the schema
		}
		if piped { // otherwise standard input may be that of a loop, or never end
			given, err := readArguments(stdin)
			if err != nil {
				return exitUsage, err
			}
			if given != nil {
				payload["arguments"] = given
			}
		}
	}
	raw, err := call(method, payload)
	if err != nil {
		return exitRefuse, err
	}
	var answer struct {
		Value json.RawMessage
		Error *struct{ Server, Tool, Code, Message, Signature string }
	}
	if err := json.Unmarshal(raw, &answer); err != nil {
		return exitRefuse, fmt.Errorf("parse answer: %w", err)
	}
	if e := answer.Error; e != nil {
		text := e.Message + " [" + e.Code + "]"
		if e.Signature != "" {
			text += "\n  " + e.Signature
		}
		if e.Code == "tool_error" {
			return exitFailed, errors.New(text)
		}
		return exitRefuse, errors.New(text)
	}
	return 0, show(stdout, answer.Value, key)
}

// readArguments reads JSON from standard input, unless that is a terminal or empty.
func readArguments(stdin *os.File) (json.RawMessage, error) {
	info, err := stdin.Stat()
	if err != nil || info.Mode()&os.ModeCharDevice != 0 {
		return nil, nil
	}
	b, err := io.ReadAll(io.LimitReader(stdin, protocol.MaxCallArgs+1))
	if err != nil {
		return nil, fmt.Errorf("read standard input: %w", err)
	}
	b = bytes.TrimSpace(b)
	switch {
	case len(b) == 0:
		return nil, nil
	case len(b) > protocol.MaxCallArgs:
		return nil, fmt.Errorf("more than %d bytes on standard input", protocol.MaxCallArgs)
	case !json.Valid(b) || b[0] != '{':
		return nil, errors.New("standard input is not a JSON object with the tool's arguments")
	}
	return b, nil
}

// show prints a value: the member key of each element for the methods that list tools.
func show(w io.Writer, value json.RawMessage, key string) error {
	if key != "value" {
		var list []map[string]any
		if err := json.Unmarshal(value, &list); err != nil {
			return fmt.Errorf("parse answer: %w", err)
		}
		for _, one := range list {
			fmt.Fprintln(w, one[key])
		}
		return nil
	}
	var text string
	if json.Unmarshal(value, &text) == nil {
		fmt.Fprintln(w, strings.TrimSuffix(text, "\n"))
		return nil
	}
	_, err := fmt.Fprintf(w, "%s\n", value)
	return err
}

// call makes one call.
func call(method string, payload any) ([]byte, error) {
	path, token := os.Getenv(EnvSocket), os.Getenv(EnvToken)
	if path == "" || token == "" {
		return nil, fmt.Errorf("code mode is off for this connection, or the program was not started by a run in code mode (%s is not set): nothing was called. Call the tool directly instead. To switch code mode on, connect without ?codemode=false to a Glovebox that was started with --tools", EnvSocket)
	}
	args, err := json.Marshal(payload)
	if err != nil {
		return nil, err
	}
	head, err := json.Marshal(Header{Token: token, Method: method, Length: len(args)})
	if err != nil {
		return nil, err
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("make socket: %w", err)
	}
	s := os.NewFile(uintptr(fd), path)
	defer s.Close()
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		return nil, fmt.Errorf("connect to %q: %w", path, err)
	}
	if _, err := s.Write(append(append(head, '\n'), args...)); err != nil && !errors.Is(err, unix.EPIPE) {
		return nil, fmt.Errorf("send call: %w", err)
	}
	return readAnswer(s)
}

// readAnswer reads the answer to a call. r is the agent, whose answers are bounded.
func readAnswer(r io.Reader) ([]byte, error) {
	br := bufio.NewReader(r)
	line, err := br.ReadBytes('\n')
	var a Answer
	if err == nil {
		err = json.Unmarshal(line, &a)
	}
	if err != nil {
		return nil, fmt.Errorf("read answer: %w; whether the tool ran is unknown", err)
	}
	if a.Error != nil {
		return nil, a.Error
	}
	result := make([]byte, max(0, min(a.Length, protocol.MaxCallResult)))
	if _, err := io.ReadFull(br, result); err != nil {
		return nil, fmt.Errorf("read answer: %w; whether the tool ran is unknown", err)
	}
	return result, nil
}
