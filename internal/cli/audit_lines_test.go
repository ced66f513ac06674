package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/internal/config"
	"github.com/glovebox-dev/glovebox/internal/egress"
	"github.com/glovebox-dev/glovebox/internal/egress/secret"
	"github.com/glovebox-dev/glovebox/internal/polltest"
)

// TestAuditLines_OfEgress: connections of boxes have the lines in the audit log that docs/security.md
// shows.
func TestAuditLines_OfEgress(t *testing.T) {
	b, err := os.ReadFile("../../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	var lines bytes.Buffer
	n := &networks{log: slog.New(slog.DiscardHandler), audit: slog.New(slog.NewJSONHandler(&lines, nil))}
	who := egress.Box{Owner: "token alice", ID: "s1"}
	for _, r := range []egress.Record{
		{
			Box: who, Outcome: egress.OK, Door: "http", Host: "api.example.org", Port: 443, Addr: netip.MustParseAddr("203.0.113.7"),
			Rule: "*.example.org", Policy: "5e1c0a77b2d4", Sent: 731, Received: 20481, Duration: 212 * time.Millisecond,
		},
		{Box: who, Outcome: egress.Refused, Door: "tcp", Site: "example.net", Hash: "9f2c51d0", Policy: "5e1c0a77b2d4", Reason: "no_rule"},
		{Box: who, Outcome: egress.Refused, Omitted: 31},
	} {
		n.record(r)
	}
	want := regexp.MustCompile(`(?m)^\{.*"msg":"egress".*\}$`).FindAll(b, -1)
	got := strings.Split(strings.TrimSpace(lines.String()), "\n")
	if len(got) != len(want) {
		t.Fatalf("%d lines, and %d in the document", len(got), len(want))
	}
	for i := range want {
		var a, b map[string]any
		if err := json.Unmarshal([]byte(got[i]), &a); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(want[i], &b); err != nil {
			t.Fatal(err)
		}
		delete(a, "time")
		delete(b, "time")
		if !reflect.DeepEqual(a, b) {
			t.Errorf("got the line %v, the document has %v", a, b)
		}
	}
}

// TestAuditLines_OfSecrets: a line about secrets has their names, what happened as docs/security.md
// lists it, and the number of lines left out. A placeholder in clear text is a warning.
func TestAuditLines_OfSecrets(t *testing.T) {
	document, err := os.ReadFile("../../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	_, about, _ := strings.Cut(string(document), `"msg":"secret"`)
	about, _, _ = strings.Cut(about, "In the other lines:")
	for kind, level := range map[secret.Kind]string{secret.Swapped: "INFO", secret.Misplaced: "INFO", secret.Masked: "INFO", secret.Unencrypted: "WARN"} {
		if !strings.Contains(about, fmt.Sprintf("`%s`", kind)) {
			t.Errorf("the document does not have the outcome %s", kind)
		}
		var line bytes.Buffer
		n := &networks{log: slog.New(slog.DiscardHandler), audit: slog.New(slog.NewJSONHandler(&line, nil))}
		n.report(secret.Event{Box: egress.Box{ID: "s1"}, Host: "api.example.org", Kind: kind, Secrets: []string{"github", "pypi"}, Omitted: 31})
		_, got, _ := strings.Cut(line.String(), `,"level":`)
		want := fmt.Sprintf(`"%s","msg":"secret","who":"local","box":"s1","host":"api.example.org","secret":"github,pypi","outcome":"%s","omitted":31}`, level, kind)
		if got != want+"\n" {
			t.Errorf("%s: got the line %s, want %s", kind, got, want)
		}
	}
}

// TestLogFile_Rotates: a log takes no more disk than its settings say, and only its owner can read it.
func TestLogFile_Rotates(t *testing.T) {
	dir := t.TempDir()
	f, err := openLogFile(&config.Config{LogMaxSize: 1 << 20, LogBackupCount: 2}, filepath.Join(dir, "audit.json"))
	if err != nil {
		t.Fatal(err)
	}
	if f.MaxAge != 0 {
		t.Errorf("files are removed after %d days, however few there are", f.MaxAge)
	}
	line := []byte(strings.Repeat("x", 1023) + "\n")
	for range 5 << 10 {
		if _, err := f.Write(line); err != nil {
			t.Fatal(err)
		}
	}
	defer f.Close()
	polltest.Until(t, 10*time.Second, "old files are removed", func() bool {
		files, err := filepath.Glob(filepath.Join(dir, "*"))
		if err != nil || len(files) > 3 {
			return false
		}
		for _, file := range files {
			if info, err := os.Stat(file); err != nil || info.Size() > 1<<20 || info.Mode().Perm() != 0o600 {
				t.Fatal(fmt.Sprint(file, " has ", info, err))
			}
		}
		return len(files) == 3
	})
}
