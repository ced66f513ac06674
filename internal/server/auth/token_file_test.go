package auth

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/glovebox-dev/glovebox/internal/owned"
)

const someHash = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"

func TestParseTokens(t *testing.T) {
	tokens, err := ParseTokens([]byte(`# a comment
[[token]]
name = "alice"
sha256 = "` + someHash + `"
expires = 2027-01-31

[[token]]
name = "bob@example.org"
sha256 = "` + strings.Replace(someHash, "9", "8", 1) + `"
expires = 2027-01-31T12:00:00+02:00
scopes = ["read", "metrics"]
`))
	if err != nil || len(tokens) != 2 {
		t.Fatalf("got %v, %v", tokens, err)
	}
	alice, bob := tokens[0], tokens[1]
	if alice.Owner() != "token alice" || !alice.Expires.Equal(time.Date(2027, 2, 1, 0, 0, 0, 0, time.UTC)) || !alice.Scopes.Has(Use) || !alice.Scopes.Has(Read) || alice.Scopes.Has(Metrics) {
		t.Errorf("alice: %+v", alice)
	}
	if !bob.Expires.Equal(time.Date(2027, 1, 31, 10, 0, 0, 0, time.UTC)) || bob.Scopes.Has(Use) || !bob.Scopes.Has(Read) || !bob.Scopes.Has(Metrics) {
		t.Errorf("bob: %+v", bob)
	}

	entry := func(lines ...string) string {
		return "[[token]]\nname = \"a\"\nsha256 = \"" + someHash + "\"\n" + strings.Join(lines, "\n")
	}
	for _, c := range []struct{ text, want string }{
		{"[[token]", "line 1"},
		{"x = 1\n", `line 1: unknown key "x"`},
		{entry(`scope = ["use"]`), `line 4: unknown key "token.scope"`},
		{entry(`scopes = ["root"]`), `entry 1 ("a"): scopes: unknown scope "root"; the scopes are: read, use, metrics`},
		{entry(`scopes = "use"`), "line 4"},
		{entry(`expires = "2027-01-31"`), "expires: must be a date"},
		{entry(`expires = 2027-01-31T10:00:00`), "expires: must be a date"},
		{entry(`expires = 1`), "expires: must be a date"},
		{entry() + entry(), "entry 2 (\"a\"): sha256: the same token as in entry 1"},
		{"[[token]]\nname = \"a\"\n", "sha256: must be 64 hexadecimal digits, got 0 characters"},
		{"[[token]]\nname = \"a b\"\n", `name "a b": must be`},
		{"[[token]]\n", `name "": must be`},
		{"[[token]]\nname = \"" + strings.Repeat("a", 65) + "\"\n", "1 to 64"},
		{"[token]\nname = \"a\"\n", "token"},
		{strings.Repeat("#", maxTokensFile+1), "larger than"},
	} {
		if _, err := ParseTokens([]byte(c.text)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.80q: got %v, want %q", c.text, err, c.want)
		}
	}
}

// TestParseTokens_OneThousand: a file may hold 1000 entries, of any length, and no more.
func TestParseTokens_OneThousand(t *testing.T) {
	var many strings.Builder
	longest := func(i int) {
		fmt.Fprintf(&many, "[[token]]\nname = \"%064d\"\nsha256 = \"%064x\"\nexpires = 2027-01-31T12:00:00.000000000+02:00\nscopes = [\"read\", \"use\", \"metrics\"]\n\n", i, i)
	}
	for i := range 1000 {
		longest(i)
	}
	if tokens, err := ParseTokens([]byte(many.String())); err != nil || len(tokens) != 1000 {
		t.Errorf("1000 entries in %d bytes: got %d tokens, %v", many.Len(), len(tokens), err)
	}
	longest(1000)
	if _, err := ParseTokens([]byte(many.String())); err == nil || !strings.Contains(err.Error(), "1001 tokens, at most 1000") {
		t.Errorf("1001 entries: %v", err)
	}
}

func FuzzParseTokens(f *testing.F) {
	f.Add([]byte("[[token]]\nname = \"alice\"\nsha256 = \"" + someHash + "\"\nexpires = 2027-01-31\nscopes = [\"use\"]\n"))
	f.Add([]byte("token = [{name=\"a\"}]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		tokens, err := ParseTokens(data)
		if err != nil {
			return
		}
		var again []byte
		for _, token := range tokens {
			if token.Expires.Year() > 9999 || token.Expires.Year() < 0 {
				return // no time that the format has
			}
			again = append(again, token.Entry()...)
		}
		if got, err := ParseTokens(again); err != nil || len(got) != len(tokens) {
			t.Errorf("%q as written by us: %v", again, err)
		}
	})
}

// write writes a file of tokens with the mode that the server demands.
func write(tb testing.TB, path string, entries ...[]byte) {
	tb.Helper()
	var data []byte
	for _, e := range entries {
		data = append(data, e...)
	}
	if err := os.WriteFile(path+".new", data, 0o600); err != nil {
		tb.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		tb.Fatal(err)
	}
}

func newToken(tb testing.TB, name string, expires time.Time, scopes ...Scope) (string, Token) {
	tb.Helper()
	secret, token, err := NewToken(name, expires, scopes)
	if err != nil {
		tb.Fatal(err)
	}
	return secret, token
}

// refusedFor returns the reason of a refusal.
func refusedFor(tb testing.TB, err error) Reason {
	tb.Helper()
	var r *Refusal
	if !errors.As(err, &r) {
		tb.Fatalf("got %v, want a refusal", err)
	}
	return r.Reason
}

func TestVerify_StaticTokens(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens.toml")
	now := time.Now()
	aliceSecret, alice := newToken(t, "alice", time.Time{}, Use)
	bobSecret, bob := newToken(t, "bob", now.Add(time.Hour), Read)
	write(t, path, alice.Entry(), bob.Entry())
	var log strings.Builder
	v, err := Open(Config{TokensFile: path, Now: func() time.Time { return now }, Log: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()

	id, err := v.Verify(t.Context(), aliceSecret)
	if err != nil || id.Owner != "token alice" || id.Name != "alice" || !id.Scopes.Has(Use) || !id.Expires.IsZero() {
		t.Fatalf("alice: %+v, %v", id, err)
	}
	bobID, err := v.Verify(t.Context(), bobSecret)
	if err != nil || bobID.Owner != "token bob" || bobID.Scopes.Has(Use) || bobID.Expires.IsZero() {
		t.Fatalf("bob: %+v, %v", bobID, err)
	}
	for _, wrong := range []string{
		aliceSecret + "x", aliceSecret[:len(aliceSecret)-1], strings.ToUpper(aliceSecret), "alice", "x", " " + aliceSecret,
		strings.Repeat("x", maxToken), fmt.Sprintf("%x", alice.Hash), string(alice.Hash[:]), "a.b.c",
	} {
		if _, err := v.Verify(t.Context(), wrong); refusedFor(t, err) != Unknown {
			t.Errorf("%.50q: %v", wrong, err)
		}
	}
	for _, wrong := range []string{"", strings.Repeat("x", maxToken+1)} {
		if _, err := v.Verify(t.Context(), wrong); refusedFor(t, err) != Malformed {
			t.Errorf("%.50q: %v", wrong, err)
		}
	}
	now = now.Add(time.Hour)
	if _, err := v.Verify(t.Context(), bobSecret); refusedFor(t, err) != Expired {
		t.Errorf("bob, expired: %v", err)
	}

	// An invalid file changes nothing, and the error names the line.
	write(t, path, []byte("[[token]]\nname = \n"))
	if err := v.Reload(); err == nil || !strings.Contains(err.Error(), path+": line 2") {
		t.Errorf("reload of a broken file: %v", err)
	}
	if _, err := v.Verify(t.Context(), aliceSecret); err != nil {
		t.Errorf("alice, after a broken file: %v", err)
	}
	// Tokens that stay keep their lifetime; removed ones are revoked.
	carolSecret, carol := newToken(t, "carol", time.Time{}, Use)
	write(t, path, carol.Entry(), alice.Entry())
	if err := v.Reload(); err != nil {
		t.Fatal(err)
	}
	if id.Revoked().Err() != nil {
		t.Error("alice's token ended although it is still there")
	}
	if bobID.Revoked().Err() == nil {
		t.Error("bob's token was removed and has not ended")
	}
	if _, err := v.Verify(t.Context(), carolSecret); err != nil {
		t.Errorf("carol: %v", err)
	}
	// Changed scopes revoke a token.
	alice.Scopes = Scopes{Read}
	write(t, path, carol.Entry(), alice.Entry())
	if err := v.Reload(); err != nil {
		t.Fatal(err)
	}
	if id.Revoked().Err() == nil {
		t.Error("alice's scopes shrank, and her earlier token was not revoked")
	}
	// A changed expiry does, too, and counts from then on.
	if id, err = v.Verify(t.Context(), aliceSecret); err != nil {
		t.Fatal(err)
	}
	alice.Expires = now.Add(time.Minute)
	write(t, path, carol.Entry(), alice.Entry())
	if err := v.Reload(); err != nil {
		t.Fatal(err)
	}
	if id.Revoked().Err() == nil {
		t.Error("alice's token expires earlier, and her earlier one was not revoked")
	}
	if _, err := v.Verify(t.Context(), aliceSecret); err != nil {
		t.Errorf("alice, before her token expires: %v", err)
	}
	now = now.Add(time.Minute)
	if _, err := v.Verify(t.Context(), aliceSecret); refusedFor(t, err) != Expired {
		t.Errorf("alice, after the time in the changed entry: %v", err)
	}
	for _, secret := range []string{aliceSecret, bobSecret, carolSecret} {
		if strings.Contains(log.String(), secret) {
			t.Errorf("the log contains a token: %s", log.String())
		}
	}
}

// TestVerify_ShortTokens: a token that is short enough to guess is refused even if the
// file has its hash.
func TestVerify_ShortTokens(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens.toml")
	long := strings.Repeat("x", minToken)
	short := long[1:]
	var entries [][]byte
	for name, secret := range map[string]string{"long": long, "short": short} {
		token := Token{Name: name, Hash: sha256.Sum256([]byte(secret)), Scopes: Scopes{Use}}
		entries = append(entries, token.Entry())
	}
	write(t, path, entries...)
	v := open(t, Config{TokensFile: path})
	if _, err := v.Verify(t.Context(), long); err != nil {
		t.Errorf("%d bytes: %v", len(long), err)
	}
	if _, err := v.Verify(t.Context(), short); refusedFor(t, err) != Unknown {
		t.Errorf("%d bytes: %v", len(short), err)
	}
}

// TestOpen_RevokesWithinTwoSeconds: a change of the file takes effect within two seconds,
// without a reload.
func TestOpen_RevokesWithinTwoSeconds(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens.toml")
	secret, alice := newToken(t, "alice", time.Time{}, Use)
	write(t, path, alice.Entry())
	synctest.Test(t, func(t *testing.T) {
		v, err := Open(Config{TokensFile: path})
		if err != nil {
			t.Fatal(err)
		}
		defer v.Close()
		for i := range 10 { // at different times between two looks at the file
			id, err := v.Verify(t.Context(), secret)
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute + time.Duration(i)*137*time.Millisecond)
			if err := id.Revoked().Err(); err != nil {
				t.Fatalf("token of an unchanged file: %v", err)
			}
			write(t, path)
			time.Sleep(2 * time.Second)
			synctest.Wait()
			if id.Revoked().Err() == nil {
				t.Errorf("%d: two seconds after its removal, the token is not revoked", i)
			}
			if _, err := v.Verify(t.Context(), secret); refusedFor(t, err) != Unknown {
				t.Errorf("%d: verify a removed token: %v", i, err)
			}
			write(t, path, alice.Entry())
			time.Sleep(2 * time.Second)
			synctest.Wait()
		}
	})
}

// TestOpen_RotatedToken: a token that takes the place of another one in the file is accepted
// within two seconds, and the other one refused.
func TestOpen_RotatedToken(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens.toml")
	before, old := newToken(t, "alice", time.Time{}, Use)
	after, replacement := newToken(t, "alice", time.Time{}, Use)
	write(t, path, old.Entry())
	synctest.Test(t, func(t *testing.T) {
		v, err := Open(Config{TokensFile: path})
		if err != nil {
			t.Fatal(err)
		}
		defer v.Close()
		if _, err := v.Verify(t.Context(), after); refusedFor(t, err) != Unknown {
			t.Errorf("the new token before it is in the file: %v", err)
		}
		write(t, path, replacement.Entry())
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if id, err := v.Verify(t.Context(), after); err != nil || id.Owner != "token alice" {
			t.Errorf("two seconds after the rotation, the new token: %+v, %v", id, err)
		}
		if _, err := v.Verify(t.Context(), before); refusedFor(t, err) != Unknown {
			t.Errorf("two seconds after the rotation, the old token: %v", err)
		}
	})
}

// TestOpen_InvalidChange: a change that makes the file invalid or unsafe leaves the tokens as
// they were, and the log says what is wrong, and where.
func TestOpen_InvalidChange(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "tokens.toml")
	secret, alice := newToken(t, "alice", time.Time{}, Use)
	bobSecret, bob := newToken(t, "bob", time.Time{}, Use)
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			name   string
			change func() error
			want   []string // in the log
		}{
			{"a broken line", func() error { write(t, path, bob.Entry(), []byte("[[token]]\nname = \n")); return nil }, []string{path, fmt.Sprintf("line %d", strings.Count(string(bob.Entry()), "\n")+2)}},
			{"a broken entry", func() error { write(t, path, bob.Entry(), []byte("[[token]]\nname = \"carol\"\n")); return nil }, []string{path, `entry 2 (\"carol\"): sha256`}},
			{"a writable file", func() error { write(t, path, bob.Entry()); return os.Chmod(path, 0o662) }, []string{path, "other users can write it (mode 0662)"}},
			{"a writable directory", func() error { write(t, path, bob.Entry()); return os.Chmod(dir, 0o777) }, []string{path, "by its directory", "0777"}},
			{"no file", func() error { return os.Remove(path) }, []string{path, "no such file"}},
		} {
			if err := os.Chmod(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			write(t, path, alice.Entry())
			var log strings.Builder
			v, err := Open(Config{TokensFile: path, Log: slog.New(slog.NewTextHandler(&log, nil))})
			if err != nil {
				t.Fatal(err)
			}
			id, err := v.Verify(t.Context(), secret)
			if err != nil {
				t.Fatal(err)
			}
			if err := c.change(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(2 * time.Second)
			synctest.Wait()
			if _, err := v.Verify(t.Context(), secret); err != nil || id.Revoked().Err() != nil {
				t.Errorf("%s: the earlier token: %v, revoked: %v", c.name, err, id.Revoked().Err())
			}
			if _, err := v.Verify(t.Context(), bobSecret); err == nil {
				t.Errorf("%s: the token of the invalid file is accepted", c.name)
			}
			v.Close()
			for _, want := range c.want {
				if !strings.Contains(log.String(), "level=ERROR") || !strings.Contains(log.String(), want) {
					t.Errorf("%s: the log does not say %q:\n%s", c.name, want, log.String())
				}
			}
		}
	})
}

// TestOpen_WarnsOfReadableFile: the server accepts a file that other users can read, and
// warns.
func TestOpen_WarnsOfReadableFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens.toml")
	_, alice := newToken(t, "alice", time.Time{}, Use)
	write(t, path, alice.Entry())
	for mode, warns := range map[os.FileMode]bool{0o600: false, 0o640: false, 0o644: true} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		var log strings.Builder
		v, err := Open(Config{TokensFile: path, Log: slog.New(slog.NewTextHandler(&log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		v.Close()
		if got := strings.Contains(log.String(), "level=WARN msg=\"tokens file is readable by every user"); got != warns {
			t.Errorf("mode %o: warned %t, want %t:\n%s", mode, got, warns, log.String())
		}
	}
}

func TestReadTokens_UnsafeFiles(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "tokens.toml")
	_, alice := newToken(t, "alice", time.Time{}, Use)
	write(t, path, alice.Entry())
	for mode, want := range map[os.FileMode]string{0o666: "other users can write it", 0o620: "other users can write it", 0o602: "other users can write it"} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		if _, _, err := ReadTokens(path); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) {
			t.Errorf("mode %o: %v", mode, err)
		}
	}
	for mode, open := range map[os.FileMode]bool{0o644: true, 0o640: false, 0o400: false} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		if _, got, err := ReadTokens(path); err != nil || got != open {
			t.Errorf("mode %o: open %v, %v", mode, got, err)
		}
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, _, err := ReadTokens(path); err == nil || !strings.Contains(err.Error(), "directory") {
		t.Errorf("a directory that other users can write: %v", err)
	}
	if err := os.Chmod(dir, 0o777|os.ModeSticky); err != nil {
		t.Fatal(err)
	}
	if _, _, err := ReadTokens(path); err != nil {
		t.Errorf("a sticky directory: %v", err)
	}
	if os.Geteuid() == 0 {
		if err := errors.Join(os.Chown(dir, -1, 12345), os.Chmod(dir, 0o770)); err != nil {
			t.Fatal(err)
		}
		if _, _, err := ReadTokens(path); err == nil || !strings.Contains(err.Error(), "0770") {
			t.Errorf("a directory that another group can write: %v", err)
		}
		if err := errors.Join(os.Chown(dir, 12345, 0), os.Chmod(dir, 0o700)); err != nil {
			t.Fatal(err)
		}
		if _, _, err := ReadTokens(path); err == nil || !strings.Contains(err.Error(), "by its directory") || !strings.Contains(err.Error(), "12345") {
			t.Errorf("a directory of another user: %v", err)
		}
		if err := os.Chown(dir, 0, 0); err != nil {
			t.Fatal(err)
		}
		others := []int{12345}
		if owned.MapsAllUsers() { // elsewhere, the files of root appear to be of this one, too
			others = append(others, 65534)
		}
		for _, uid := range others {
			if err := os.Chown(path, uid, -1); err != nil {
				t.Fatal(err)
			}
			if _, _, err := ReadTokens(path); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("belongs to user %d", uid)) {
				t.Errorf("a file of user %d: %v", uid, err)
			}
		}
	}
	shared, link := filepath.Join(t.TempDir(), "shared"), filepath.Join(t.TempDir(), "link")
	target := filepath.Join(shared, "tokens.toml")
	if err := errors.Join(os.Mkdir(shared, 0o700), os.Symlink(target, link)); err != nil {
		t.Fatal(err)
	}
	write(t, target, alice.Entry())
	if _, _, err := ReadTokens(link); err != nil {
		t.Errorf("a link to a safe file: %v", err)
	}
	if err := os.Chmod(shared, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, _, err := ReadTokens(link); err == nil || !strings.Contains(err.Error(), shared+" has mode 0777") {
		t.Errorf("a link to a file in a directory that other users can write: %v", err)
	}
	if _, _, err := ReadTokens(dir); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("a directory: %v", err)
	}
	if _, err := Open(Config{TokensFile: filepath.Join(dir, "none")}); err == nil || !strings.Contains(err.Error(), "none") {
		t.Errorf("no file: %v", err)
	}
}

func TestAddAndRemoveTokens(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens.toml")
	_, a := newToken(t, "a", time.Time{}, Use)
	_, b := newToken(t, "b", time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC), Read, Metrics)
	_, b2 := newToken(t, "b", time.Time{}, Use)
	for _, token := range []Token{a, b, b2} {
		if err := AddToken(path, &token); err != nil {
			t.Fatal(err)
		}
	}
	if err := AddToken(path, &a); err == nil {
		t.Error("the same token was added twice")
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	tokens, _, err := ReadTokens(path)
	if err != nil || len(tokens) != 3 || !tokens[0].same(&a) || !tokens[1].same(&b) || !tokens[2].same(&b2) {
		t.Fatalf("got %+v, %v", tokens, err)
	}
	if n, err := RemoveTokens(path, func(o *Token) bool { return o.ID() == b.ID() }); n != 1 || err != nil {
		t.Errorf("remove: %d, %v", n, err)
	}
	if n, err := RemoveTokens(path, func(o *Token) bool { return o.Name == "nobody" }); n != 0 || err != nil {
		t.Errorf("remove no match: %d, %v", n, err)
	}
	tokens, _, err = ReadTokens(path)
	if err != nil || len(tokens) != 2 || !tokens[0].same(&a) || !tokens[1].same(&b2) {
		t.Fatalf("got %+v, %v", tokens, err)
	}

	// Comments between the tables stay.
	write(t, path, []byte("# head\n\n# of a\n"), a.Entry(), []byte("\n# of b\n# and more\n  "), b.Entry(), []byte("# last\n[[ token ]] # b2\n"), b2.Entry()[len("[[token]]\n"):])
	if n, err := RemoveTokens(path, func(o *Token) bool { return o.Name == "a" }); n != 1 || err != nil {
		t.Errorf("remove: %d, %v", n, err)
	}
	data, err := os.ReadFile(path)
	want := "# head\n\n# of a\n# of b\n# and more\n  " + string(b.Entry()) + "# last\n[[ token ]] # b2\n" + string(b2.Entry()[len("[[token]]\n"):])
	if err != nil || string(data) != want {
		t.Errorf("got %s\nwant %s", data, want)
	}
	inline := []byte(`token = [{name = "a", sha256 = "` + someHash + `"}]`)
	write(t, path, inline)
	if _, err := RemoveTokens(path, func(*Token) bool { return true }); err == nil || !strings.Contains(err.Error(), "by hand") {
		t.Errorf("remove from a list: %v", err)
	}
}

// TestAddToken_Concurrent: of concurrent edits none undoes another.
func TestAddToken_Concurrent(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens.toml")
	const edits = 16
	done := make(chan error, edits)
	for i := range edits {
		_, token := newToken(t, fmt.Sprintf("t%d", i), time.Time{}, Use)
		go func() { done <- AddToken(path, &token) }()
	}
	for range edits {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if tokens, _, err := ReadTokens(path); err != nil || len(tokens) != edits {
		t.Errorf("%d tokens of %d are there, %v", len(tokens), edits, err)
	}
}

// BenchmarkVerifyStatic measures Verify with maxTokens tokens.
func BenchmarkVerifyStatic(b *testing.B) {
	path := filepath.Join(b.TempDir(), "tokens.toml")
	var entries [][]byte
	var secret string
	for i := range maxTokens {
		s, token := newToken(b, fmt.Sprint("user", i), time.Time{}, Use)
		entries = append(entries, token.Entry())
		secret = s
	}
	write(b, path, entries...)
	v, err := Open(Config{TokensFile: path})
	if err != nil {
		b.Fatal(err)
	}
	defer v.Close()
	for b.Loop() {
		if _, err := v.Verify(b.Context(), secret); err != nil {
			b.Fatal(err)
		}
	}
}
