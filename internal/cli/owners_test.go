//go:build linux

package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/server/auth"
	"github.com/glovebox-dev/glovebox/internal/server/tools"
)

// tokens are the tokens of three people, in a file.
type tokens struct{ file, alice, bob, carol string }

func newTokens(t *testing.T) tokens {
	t.Helper()
	k := tokens{file: filepath.Join(t.TempDir(), "tokens.toml")}
	for name, secret := range map[string]*string{"alice": &k.alice, "bob": &k.bob, "carol": &k.carol} {
		s, token, err := auth.NewToken(name, time.Time{}, auth.Scopes{auth.Use})
		if err == nil {
			err = auth.AddToken(k.file, &token)
		}
		if err != nil {
			t.Fatal(err)
		}
		*secret = s
	}
	return k
}

// bearing sends a token with every request.
type bearing string

func (b bearing) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	req.Header.Set("Authorization", "Bearer "+string(b))
	return http.DefaultTransport.RoundTrip(req)
}

// as returns a client with a token.
func (s *serverProcess) as(t *testing.T, token string) boxes {
	t.Helper()
	c := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	session, err := c.Connect(t.Context(), &mcp.StreamableClientTransport{
		Endpoint: s.endpoint, HTTPClient: &http.Client{Transport: bearing(token)},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { session.Close() })
	return boxes{t, session}
}

// things are ids of a person's boxes and snapshots, or ids that never existed.
// own are objects of the caller who tries them.
type things struct {
	session, context, name, snapshot, snapshotName, sessionSnapshot string

	own *things
}

// all lists them, longer ones first.
func (t things) all() []string {
	return []string{t.snapshot, t.sessionSnapshot, t.context, t.snapshotName, t.session, t.name}
}

// an attempt is a call of a tool with ids of another owner.
type attempt struct {
	args  []func(x things) args
	makes bool                  // a missing object is created, for the caller
	names []func(x things) args // make an object of the caller's own with such an id or name
}

// naming adds calls that give an object of the caller's own an id or a name of another owner's.
func (a attempt) naming(calls ...func(x things) args) attempt {
	a.names = calls
	return a
}

func of(a ...func(x things) args) attempt { return attempt{args: a} }

func making(a ...func(x things) args) attempt { return attempt{args: a, makes: true} }

// attempts has a row for every tool.
var attempts = map[string]attempt{
	"execute_code":    making(func(x things) args { return args{"session_id": x.session, "code": "print('secret' in dir())"} }),
	"execute_command": making(func(x things) args { return args{"session_id": x.session, "command": "cat secret.txt"} }),
	"search_tools":    of(func(things) args { return args{} }), // of TestCode_owners; not offered here
	"describe_tools":  of(func(things) args { return args{"names": []any{"memory"}} }),
	"upload_file": making(
		func(x things) args { return args{"session_id": x.session, "path": "secret.txt", "content": "by bob"} },
	),
	"get_sessions":        of(func(things) args { return args{} }, func(x things) args { return args{"session_id": x.session} }),
	"stop_session":        of(func(x things) args { return args{"session_id": x.session} }),
	"get_volume_path":     of(func(things) args { return args{} }),
	"get_volume_mappings": of(func(things) args { return args{} }),
	"run_code": of(
		func(x things) args { return args{"context_id": x.context, "code": "print(secret)"} },
		func(x things) args { return args{"context_id": x.name, "code": "print(secret)"} },
		func(things) args { return args{"code": "print('secret' in dir())"} },
	),
	"create_context": of(func(x things) args { return args{"name": "another"} }).naming(
		func(x things) args { return args{"name": x.name} },
	),
	"stop_context": of(
		func(x things) args { return args{"context_id": x.context} },
		func(x things) args { return args{"context_id": x.name} },
	),
	"list_contexts": of(func(things) args { return args{} }),
	"download_file": of(
		func(x things) args { return args{"session_id": x.session, "path": "secret.txt"} },
		func(x things) args { return args{"context_id": x.context, "path": "secret.txt"} },
		func(x things) args { return args{"context_id": x.name, "path": "secret.txt"} },
	),
	"list_files": of(
		func(x things) args { return args{"session_id": x.session} },
		func(x things) args { return args{"context_id": x.context} },
	),
	"fork_context": of(
		func(x things) args { return args{"context_id": x.context} },
		func(x things) args { return args{"context_id": x.name} },
	).naming(
		func(x things) args { return args{"context_id": x.own.context, "name": x.name} },
	),
	"snapshot_context": of(
		func(x things) args { return args{"context_id": x.context} },
		func(x things) args { return args{"context_id": x.name, "name": "theirs"} },
	).naming(
		func(x things) args { return args{"context_id": x.own.context, "name": x.snapshotName} },
	),
	"restore_context": of(
		func(x things) args { return args{"snapshot_id": x.snapshot} },
		func(x things) args { return args{"snapshot_id": x.snapshotName} },
		func(x things) args { return args{"snapshot_id": x.snapshot, "context_id": x.context} },
		func(x things) args { return args{"snapshot_id": x.sessionSnapshot} },
	).naming(
		func(x things) args { return args{"snapshot_id": x.own.snapshot, "name": x.name} },
		func(x things) args { return args{"snapshot_id": x.own.snapshot, "context_id": x.context} },
		func(x things) args { return args{"snapshot_id": x.own.snapshot, "context_id": x.name} },
	),
	"fork_session": of(
		func(x things) args { return args{"session_id": x.session} },
		func(x things) args { return args{"session_id": x.session, "new_session_id": "mine-now"} },
	).naming(
		func(x things) args { return args{"session_id": x.own.session, "new_session_id": x.session} },
	),
	"snapshot_session": of(func(x things) args { return args{"session_id": x.session} }).naming(
		func(x things) args { return args{"session_id": x.own.session, "name": x.snapshotName} },
	),
	"restore_session": of(
		func(x things) args { return args{"snapshot_id": x.sessionSnapshot} },
		func(x things) args { return args{"snapshot_id": x.sessionSnapshot, "session_id": x.session} },
		func(x things) args { return args{"snapshot_id": x.snapshot} },
	).naming(
		func(x things) args { return args{"snapshot_id": x.own.sessionSnapshot, "session_id": x.session} },
	),
	"list_snapshots": of(func(things) args { return args{} }),
	"delete_snapshot": of(
		func(x things) args { return args{"snapshot_id": x.snapshot} },
		func(x things) args { return args{"snapshot_id": x.snapshotName} },
		func(x things) args { return args{"snapshot_id": x.sessionSnapshot} },
	),
}

// varying matches the parts of an answer that differ from call to call.
var varying = regexp.MustCompile(`(ctx-)?[0-9a-f-]{36}|\b[a-z2-7]{26}\b|\d+ MB|\d{4}-\d\d-\d\dT[0-9:.]+Z|"(execution_time|execution_time_ms|total|size_bytes)": ?[0-9.e-]+|source": ?"[a-z]+"|\d+ ms|\d+ (second|minute)s? ago|just now`)

// answer returns the whole answer of a tool, without the ids of the call and the varying
// parts.
func (b boxes) answer(tool string, a args, x things) string {
	b.t.Helper()
	res, err := b.c.CallTool(b.t.Context(), &mcp.CallToolParams{Name: tool, Arguments: a})
	text := fmt.Sprint(err)
	if err == nil {
		raw, err := json.MarshalIndent(res, "", " ")
		if err != nil {
			b.t.Fatal(err)
		}
		text = strings.ReplaceAll(string(raw), `\"`, `"`)
	} else if e, ok := errors.AsType[*jsonrpc.Error](err); ok {
		text += string(e.Data)
	}
	for i, id := range x.all() {
		text = strings.ReplaceAll(text, id, fmt.Sprint("ID", i))
	}
	return varying.ReplaceAllString(text, "…")
}

// removeMade removes what the caller has besides own, and says how much that was.
func (b boxes) removeMade(own *things) string {
	b.t.Helper()
	var counts []string
	for _, kind := range []struct{ list, items, id, remove string }{
		{"list_contexts", "contexts", "context_id", "stop_context"},
		{"list_snapshots", "snapshots", "snapshot_id", "delete_snapshot"},
		{"get_sessions", "sessions", "session_id", "stop_session"},
	} {
		n := 0
		for _, item := range b.items(kind.list, kind.items) {
			if id, _ := item[kind.id].(string); !slices.Contains(own.all(), id) {
				b.must(kind.remove, args{kind.id: id})
				n++
			}
		}
		counts = append(counts, fmt.Sprint(n, " ", kind.items))
	}
	return strings.Join(counts, ", ")
}

// attemptAll makes all attempts with the token of a stranger, who reaches nothing: each answer is that
// for an unknown id, and has none of the words, which are of the other owner.
func (s *serverProcess) attemptAll(t *testing.T, stranger string, hers, never things, words ...string) {
	t.Helper()
	bob := s.as(t, stranger)
	for _, makes := range []bool{false, true} {
		for name, a := range attempts {
			if a.makes != makes {
				continue
			}
			for i, of := range a.args {
				got, want := bob.answer(name, of(hers), hers), bob.answer(name, of(never), never)
				if got != want {
					t.Errorf("%s, %d: id of another owner: got %s\nwant the answer for an unknown id: %s", name, i, got, want)
				}
				if slices.ContainsFunc(words, func(w string) bool { return strings.Contains(got, w) }) {
					t.Errorf("%s, %d: the answer has data of another owner: %s", name, i, got)
				}
				if makes {
					bob.must("stop_session", args{"session_id": hers.session})
					bob.must("stop_session", args{"session_id": never.session})
				}
			}
		}
	}
	for _, c := range bob.items("list_contexts", "contexts") {
		bob.must("stop_context", args{"context_id": c["context_id"]})
	}
	own := &things{session: "own-work"}
	bob.execute(own.session, "x = 1")
	own.context = bob.context("own name", "python")
	own.snapshot = bob.must("snapshot_context", args{"context_id": own.context})["snapshot_id"].(string)
	own.sessionSnapshot = bob.must("snapshot_session", args{"session_id": own.session})["snapshot_id"].(string)
	hers.own, never.own = own, own
	for name, a := range attempts {
		for i, of := range a.names {
			got := bob.answer(name, of(hers), hers)
			made := bob.removeMade(own)
			want := bob.answer(name, of(never), never)
			if wantMade := bob.removeMade(own); got != want || made != wantMade {
				t.Errorf("%s, %d: an object of one's own with the id or name of another owner's: got %s and %s\nwant those for an unused id or name: %s and %s", name, i, got, made, want, wantMade)
			}
		}
	}
}

// TestOwners_EveryTool: every tool answers ids of another owner like ids that never
// existed, while the boxes live and, after a restart of the server, on disk.
func TestOwners_EveryTool(t *testing.T) {
	for _, tool := range tools.All() {
		if _, ok := attempts[tool.Def.Name]; !ok {
			t.Errorf("%s has no row in attempts: add the calls with which an owner could reach another's objects", tool.Def.Name)
		}
	}
	if len(attempts) != len(tools.All()) {
		t.Errorf("%d rows for %d tools", len(attempts), len(tools.All()))
	}
	k, state := newTokens(t), t.TempDir()
	flags := append([]string{"--tokens-file", k.file}, plain...)
	s := startServer(t, state, flags...)
	alice := s.as(t, k.alice)
	const secret = "of-alice-7c3f"
	hers := things{session: "alices-work", name: "alices name", snapshotName: "alices state"}
	alice.execute(hers.session, "secret = '"+secret+"'\nopen('secret.txt', 'w').write(secret)")
	hers.context = alice.context(hers.name, "python")
	alice.run(hers.context, "secret = '"+secret+"'\nopen('secret.txt', 'w').write(secret)")
	unnamed := alice.must("run_code", args{"code": "secret = '" + secret + "'"})["context_id"].(string) // a default context
	hers.snapshot = alice.must("snapshot_context", args{"context_id": hers.context, "name": hers.snapshotName})["snapshot_id"].(string)
	hers.sessionSnapshot = alice.must("snapshot_session", args{"session_id": hers.session})["snapshot_id"].(string)
	never := neverOf(hers)

	check := func(s *serverProcess) {
		t.Helper()
		alice := s.as(t, k.alice)
		alice.want(alice.execute, hers.session, "print(secret, open('secret.txt').read())", secret+" "+secret)
		alice.want(alice.run, hers.context, "print(secret, open('secret.txt').read())", secret+" "+secret)
		alice.want(alice.run, unnamed, "print(secret)", secret)
		if n := len(alice.items("list_snapshots", "snapshots")); n != 2 {
			t.Errorf("alice has %d snapshots, want 2", n)
		}
		if n := len(alice.items("list_contexts", "contexts")); n != 2 {
			t.Errorf("alice has %d contexts, want 2", n)
		}
	}
	s.attemptAll(t, k.bob, hers, never, secret, "alice")
	check(s)
	s.cmd.Process.Signal(syscall.SIGTERM)
	if code, log := s.wait(time.Minute); code != 0 {
		t.Fatalf("got exit code %d\n%s", code, log)
	}
	s = startServer(t, state, flags...)
	s.attemptAll(t, k.carol, hers, never, secret, "alice") // an owner without boxes
	check(s)
}

// TestOwners_EverythingFromBeforeTokens: boxes that were created without authentication, which a
// restart hibernates, with their files and the kept snapshots, are out of reach of tokens, and
// there for the local user once no tokens are required.
func TestOwners_EverythingFromBeforeTokens(t *testing.T) {
	k, state := newTokens(t), t.TempDir()
	withTokens := append([]string{"--tokens-file", k.file}, plain...)
	const secret = "of-local-5e1c"
	const write, read = "secret = '" + secret + "'\nopen('secret.txt', 'w').write(secret)", "print(secret, open('secret.txt').read())"
	s := startServer(t, state, plain...)
	local := boxes{t, s.connect()}
	theirs := things{session: "locals-work", name: "locals name", snapshotName: "locals state"}
	local.execute(theirs.session, write)
	theirs.context = local.context(theirs.name, "python")
	local.run(theirs.context, write)
	theirs.snapshot = local.must("snapshot_context", args{"context_id": theirs.context, "name": theirs.snapshotName})["snapshot_id"].(string)
	theirs.sessionSnapshot = local.must("snapshot_session", args{"session_id": theirs.session})["snapshot_id"].(string)
	s.stop()

	s = startServer(t, state, withTokens...)
	s.attemptAll(t, k.alice, theirs, neverOf(theirs), secret, "locals")
	s.stop()

	s = startServer(t, state, plain...)
	local = boxes{t, s.connect()}
	if got := local.status(theirs.context); got != "hibernated" {
		t.Errorf("the context of the local user is %s, want hibernated: tokens woke or removed it", got)
	}
	local.want(local.execute, theirs.session, read, secret+" "+secret)
	local.want(local.run, theirs.context, read, secret+" "+secret)
	back := local.must("restore_context", args{"snapshot_id": theirs.snapshotName})["context_id"].(string)
	local.want(local.run, back, read, secret+" "+secret)
	local.must("restore_session", args{"snapshot_id": theirs.sessionSnapshot, "session_id": "back"})
	local.want(local.execute, "back", read, secret+" "+secret)
}

// neverOf returns ids that never existed, of the form of others.
func neverOf(x things) things {
	return things{
		session: "unused-work", name: "unused name", snapshotName: "unused state",
		context:  "ctx-00000000-0000-4000-8000-000000000000",
		snapshot: flip(x.snapshot), sessionSnapshot: flip(x.sessionSnapshot),
	}
}

// flip returns an id of the same form.
func flip(id string) string {
	return strings.Map(func(r rune) rune {
		switch r {
		case '1':
			return '2'
		case 'a':
			return 'b'
		case '4':
			return '5'
		}
		return r
	}, id[:len(id)-1]) + map[bool]string{true: "1", false: "0"}[id[len(id)-1] == '0']
}
