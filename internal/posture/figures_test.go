//go:build linux

package posture

import (
	"fmt"
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// access is the document of the promises about clients and limits.
const access = "../../docs/security.md"

// figures are texts of documents that promise numbers, and where the code has each of them, in
// the same order: a constant of a package, or the default of a field, "PACKAGE default FIELD".
// The product of several is written with " * ". A text without any promises numbers that a test
// of behavior has, which the comment beside it names.
var figures = []struct {
	file, text string
	code       []string
}{
	{access, "A file may hold 1000 entries", []string{"internal/server/auth.maxTokens"}},
	{access, "A new token is accepted within two seconds", nil}, // TestOpen_RotatedToken
	{access, "with 30 seconds of tolerance", []string{"internal/server/auth.skew"}},
	{access, "at start, every 15 minutes, after a failure sooner, and when a token names an unknown key (at most every five seconds)", []string{"internal/server/auth.renewAfter", "internal/server/auth.refetchGap"}},
	{access, "since the start, or for a day", []string{"internal/server/auth.staleAfter"}},
	{access, "to 255 printable ASCII characters", []string{"internal/server/auth.maxSubject"}},
	{access, "with a space between them, they are longer than 256 bytes", []string{"internal/server/auth.maxOwner"}},

	{access, "| rollbacks of one box | 1 |", nil}, // TestRollBack_OneAtATime
	{access, "too full for less than five minutes", []string{"internal/cli.diskGrace"}},
	{access, "`--disk-reserve-mb`, at most 256 MB)", []string{"internal/box/snapshot.sweepFree"}},
	{access, "kept snapshots that are on disk | 10,000 in all", []string{"internal/cli.maxRecords"}},
	{access, "what an MCP session keeps of its client's `initialize` | 16 KiB;", []string{"internal/server.maxHandshake"}},
	{access, "and 32 more | the oldest of the address", []string{"internal/server.newPlaces"}},
	{access, "otherwise one of tokens of the same scope that has been idle for a minute", []string{"internal/server.restBeforeEviction"}},
	{access, "one of the owner's connections that has been idle for a second closes", []string{"internal/server.restBeforeReclaim"}},
	{access, "(IPv6: /64)", nil}, // TestNetwork_OfAnAddress
	{access, "bodies over 8 KiB in memory | 8 × `--max-body-mb`", []string{"internal/server.smallBody", "internal/server.largeBodies"}},
	{access, "2 × `--max-calls`", nil}, // TestShares_AreThoseOfTheDocument
	{access, "answers over 16 KiB that clients have not read | 128 MiB in all", []string{"internal/server.smallAnswer", "internal/server default Answers"}},
	{access, "events kept for resuming streams | 64 MiB in all; 1 MiB and 512 events per session", []string{"internal/server.replayTotal * internal/server default Replay", "internal/server default Replay", "internal/server.maxReplayEvents"}},
	{access, "results of 16 MiB and 500,000 values; 512 MiB in all, 192 MiB per owner", []string{"mcpkit default Message", "mcpkit default Values", "internal/codemode.maxMemory", "internal/codemode.maxOwnerMemory"}},
	{access, "the call waits up to 5 s, then it fails", []string{"internal/codemode.memoryWait"}},
	{access, "messages of an MCP server over HTTP that are not complete | 128 MiB per server", []string{"mcpkit.maxArriving * mcpkit default Message"}},
	{access, "1 MiB each, for at most 10 programs per owner and 100 in all", []string{"internal/codemode/approval.maxLateResult", "internal/codemode/approval default PerOwner", "internal/codemode/approval default All"}},
	{access, "results of tasks | 128 MiB in all, 32 MiB per owner, 16 MiB each", []string{"internal/server/tasks default ResultsAll", "internal/server/tasks default ResultsKept", "internal/server/tasks default Result"}},
	{access, "tasks | 32 running and 256 until they expire, per owner; 4,096 in all", []string{"internal/server/tasks default Running", "internal/server/tasks default Kept", "internal/server/tasks default All"}},
	{access, "headers 64 KiB in 10 s", []string{"internal/server.maxHeader", "internal/server default Header"}},
	{access, "limits the time for headers over HTTP/1 only", nil}, // a version
	{access, "`--max-body-mb` in 2 min, 262,144 values; 256 messages in a batch", []string{"internal/server default Upload", "internal/server/envelope.maxValues", "internal/server/envelope.maxBatch"}},
	{access, "at once | 32 in all, 16 per owner", []string{"internal/perplexity.maxCalls", "internal/perplexity.maxOwnerCalls"}},
	{access, "one answer of the search API | 4 MiB, lists of 1000 elements", []string{"internal/perplexity.maxBody", "internal/perplexity.maxElements"}},
	{access, "programs that wait for approval | 100 in all, 10 per owner; 5 min for each question, which has 8 calls at most; 8 questions of a run by results, 20 by elicitation", []string{"internal/codemode/approval default All", "internal/codemode/approval default PerOwner", "internal/codemode/approval default Expiry", "internal/codemode/approval.maxGroups", "internal/codemode/approval.maxRounds", "internal/codemode/approval.maxElicitations"}},
	{access, "cached answers of web search | 100 in all, 50 per owner", []string{"internal/perplexity.maxCached", "internal/perplexity.maxOwnerCached"}},
	{access, "64 per box; 600 new ones a minute per box, 2,400 per owner", []string{"internal/egress.maxBoxConnections", "internal/egress.boxPerMinute", "internal/egress.ownerPerMinute"}},
	{access, "lookups of names by programs, per box | 20 a second, 100 at once", []string{"internal/egress.lookupsPerSecond", "internal/egress.lookupBurst"}},
	{access, "in progress, per owner | 128, streams included", []string{"internal/egress/secret.maxRequests"}},
	{access, "four times that per owner | the transfer slows down; a connection that would have to wait for more than 30 s closes", []string{"internal/egress.ownerBytes", "internal/egress.maxPause"}},
	{access, "requests without a valid token, per address | 10 per second, 50 at once", []string{"internal/server.unauthenticatedRate", "internal/server.unauthenticatedBurst"}},
	{access, "or per address without tokens | 1 per second, 20 at once", []string{"internal/server.lookupRate", "internal/server.lookupBurst"}},

	{access, "for each reason 5 of a box at once, 20 of an owner, and then one every 10 s", []string{"internal/egress.refusalBurst", "internal/egress.ownerRefusalBurst", "internal/loglimit.Interval"}},
	{access, "of a malformed name nothing) or the address, at most 64 characters", []string{"internal/egress.maxSite"}},
	{access, "gets five lines and then one in ten seconds", []string{"internal/server.refusedLineBurst", "internal/loglimit.Interval"}},
	{access, "each owner gets twenty lines and then one in ten seconds", []string{"internal/codemode.refusalBurst", "internal/loglimit.Interval"}},

	{document, "within a day says what is lost and why (of 1000 such reports", []string{"internal/box.tombstoneAge", "internal/box.maxTombstones"}},
	{document, "keeps the limit for a day, on all servers", []string{"internal/box.tombstoneAge"}},
	{document, "has started ends within five minutes", []string{"internal/cli.orphanTimeout"}},
	{document, "`doctor` warns of a gVisor older than 120 days", nil}, // TestProbeVersion_WarnsAfter120Days
}

var (
	units = map[string]int64{
		"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "MB": 1 << 20, // of a setting, which counts MiB
		"s": 1e9, "second": 1e9, "seconds": 1e9, "min": 60e9, "minute": 60e9, "minutes": 60e9, "day": 24 * 3600e9, "days": 24 * 3600e9,
	}
	words = map[string]int64{"a": 1, "four": 4, "five": 5, "ten": 10, "twenty": 20}
	// figure is a number with its unit.
	figure = regexp.MustCompile(`\b(a day|for a (?:second|minute)|four|five|ten|twenty|\d[\d,]*)(?: (KiB|MiB|MB|s|seconds|min|minutes|days?)\b)?`)
)

// figuresIn returns the numbers of a text, durations in nanoseconds.
func figuresIn(t *testing.T, text string) (found []int64) {
	t.Helper()
	for _, m := range figure.FindAllStringSubmatch(text, -1) {
		number, unit := m[1], m[2]
		if of := strings.Fields(strings.TrimPrefix(number, "for ")); len(of) == 2 {
			number, unit = of[0], of[1]
		}
		n, ok := words[number]
		if !ok {
			if _, err := fmt.Sscan(strings.ReplaceAll(number, ",", ""), &n); err != nil {
				t.Fatalf("%q in %q: %v", m[0], text, err)
			}
		}
		found = append(found, n*units[unit])
	}
	return found
}

// TestDocument_FiguresAreThoseOfTheCode: the numbers that the documents promise are the
// constants and defaults of the code, and each number in the table of limits is one of them.
func TestDocument_FiguresAreThoseOfTheCode(t *testing.T) {
	texts := make(map[string]string)
	for _, file := range []string{access, document} {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		texts[file] = string(b)
	}
	_, rest, _ := strings.Cut(texts[access], "\n## Limits\n")
	rest, _, _ = strings.Cut(rest, "\n## ")
	if !strings.Contains(rest, "| one request |") {
		t.Fatalf("%s has no table of limits", access)
	}
	code := make(sources)
	for _, f := range figures {
		if n := strings.Count(texts[f.file], f.text); n != 1 {
			t.Errorf("%s has %q %d times, want it once", f.file, f.text, n)
		}
		rest = strings.ReplaceAll(rest, f.text, regexp.MustCompile(`[0-9]+`).ReplaceAllString(f.text, ""))
		if f.code == nil {
			continue
		}
		said := figuresIn(t, f.text)
		if len(said) != len(f.code) {
			t.Errorf("%q has the numbers %d, and the code has %q", f.text, said, f.code)
			continue
		}
		for i, name := range f.code {
			if has := code.value(t, name); has != said[i] {
				t.Errorf("%s says %d in %q, and the code has %s = %d", f.file, said[i], f.text, name, has)
			}
		}
	}
	// Codes of HTTP in the column of responses promise no limit.
	for line := range strings.Lines(rest) {
		cells := strings.Split(line, "|")
		if len(cells) == 5 {
			cells[3] = regexp.MustCompile(`\b(4\d\d|503)\b`).ReplaceAllString(cells[3], "")
		}
		if n := regexp.MustCompile(`[0-9]+`).FindAllString(strings.Join(cells, "|"), -1); n != nil {
			t.Errorf("%s promises %q in %q, which no entry of figures compares with the code", access, n, line)
		}
	}
}

// sources are the parsed files of packages, by their folders below the root.
type sources map[string][]*ast.File

// of returns the files of a package that are not tests.
func (s sources) of(t *testing.T, dir string) []*ast.File {
	t.Helper()
	if files, ok := s[dir]; ok {
		return files
	}
	names, err := filepath.Glob(filepath.Join("..", "..", filepath.FromSlash(dir), "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		s[dir] = append(s[dir], f)
	}
	return s[dir]
}

// value returns the product of what the names of figures stand for.
func (s sources) value(t *testing.T, names string) int64 {
	t.Helper()
	product := int64(1)
	for name := range strings.SplitSeq(names, " * ") {
		var v constant.Value
		if dir, field, ok := strings.Cut(name, " default "); ok {
			v = s.defaultOf(t, dir, field)
		} else {
			i := strings.LastIndex(name, ".")
			v = s.constant(t, name[:i], name[i+1:])
		}
		n, exact := constant.Int64Val(constant.ToInt(v))
		if !exact {
			t.Fatalf("%s is no number: %v", name, v)
		}
		product *= n
	}
	return product
}

// constant returns the value of a constant of a package.
func (s sources) constant(t *testing.T, dir, name string) constant.Value {
	t.Helper()
	for _, f := range s.of(t, dir) {
		for _, d := range f.Decls {
			d, ok := d.(*ast.GenDecl)
			if !ok || d.Tok != token.CONST {
				continue
			}
			for _, spec := range d.Specs {
				spec := spec.(*ast.ValueSpec)
				if i := slices.IndexFunc(spec.Names, func(n *ast.Ident) bool { return n.Name == name }); i >= 0 && i < len(spec.Values) {
					return s.eval(t, dir, spec.Values[i])
				}
			}
		}
	}
	t.Fatalf("package %s has no constant %s", dir, name)
	return nil
}

// defaultOf returns the default of a field: the second argument of the calls whose first one is
// the field, such as def(&l.Header, 10*time.Second) and cmp.Or(o.All, 100).
func (s sources) defaultOf(t *testing.T, dir, field string) constant.Value {
	t.Helper()
	var found []constant.Value
	for _, f := range s.of(t, dir) {
		ast.Inspect(f, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) != 2 {
				return true
			}
			first := call.Args[0]
			if of, ok := first.(*ast.UnaryExpr); ok && of.Op == token.AND {
				first = of.X
			}
			switch fun := call.Fun.(type) {
			case *ast.Ident:
				ok = fun.Name == "def" || fun.Name == "setDefault"
			case *ast.SelectorExpr:
				x, isName := fun.X.(*ast.Ident)
				ok = isName && x.Name == "cmp" && fun.Sel.Name == "Or"
			default:
				ok = false
			}
			if of, is := first.(*ast.SelectorExpr); ok && is && of.Sel.Name == field {
				found = append(found, s.eval(t, dir, call.Args[1]))
			}
			return true
		})
	}
	if len(found) != 1 {
		t.Fatalf("package %s sets a default of the field %s %d times, want once", dir, field, len(found))
	}
	return found[0]
}

// eval computes a constant expression of a package.
func (s sources) eval(t *testing.T, dir string, e ast.Expr) constant.Value {
	t.Helper()
	switch e := e.(type) {
	case *ast.BasicLit:
		return constant.MakeFromLiteral(e.Value, e.Kind, 0)
	case *ast.ParenExpr:
		return s.eval(t, dir, e.X)
	case *ast.Ident:
		return s.constant(t, dir, e.Name)
	case *ast.SelectorExpr:
		durations := map[string]int64{"Millisecond": 1e6, "Second": 1e9, "Minute": 60e9, "Hour": 3600e9}
		if x, ok := e.X.(*ast.Ident); ok && x.Name == "time" && durations[e.Sel.Name] != 0 {
			return constant.MakeInt64(durations[e.Sel.Name])
		}
	case *ast.BinaryExpr:
		x, y := s.eval(t, dir, e.X), s.eval(t, dir, e.Y)
		switch e.Op {
		case token.SHL:
			n, _ := constant.Uint64Val(y)
			return constant.Shift(x, token.SHL, uint(n))
		case token.QUO:
			return constant.BinaryOp(x, token.QUO_ASSIGN, y) // of integers
		case token.ADD, token.SUB, token.MUL:
			return constant.BinaryOp(x, e.Op, y)
		}
	}
	t.Fatalf("package %s: no constant expression that this test knows: %#v", dir, e)
	return nil
}
