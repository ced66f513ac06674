//go:build linux && (amd64 || arm64)

package template

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
)

const builderEnv = "GLOVEBOX_TEST_TEMPLATE_BUILDER"

func builder() int { return 0 }

func TestBuild(t *testing.T) {
	l := open(t)
	s := l.another(t, nil)
	w := python()
	w.Preload = []string{"json", "no_such_module", "json"}
	if _, ok := s.Find(w); ok {
		t.Fatal("found before it was built")
	}
	var p progress
	made, err := s.Build(t.Context(), w, p.tell)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v\n%s", made, &p)
	if fmt.Sprint(made.Missing) != "[no_such_module]" || fmt.Sprint(made.Want.Preload) != "[json no_such_module]" || made.Bytes < 1<<20 || time.Since(made.Made) > time.Hour {
		t.Errorf("got %+v", made)
	}
	if want := `^template python \(small\): booting
template python \(small\): importing json, no_such_module
template python \(small\): there is no no_such_module, left out
template python \(small\): writing
template python \(small\): proving \d+ MiB
template python \(small\): done in \d+\.\d s$`; !regexp.MustCompile(want).MatchString(p.String()) {
		t.Errorf("got progress\n%s", &p)
	}
	w.Preload = []string{"no_such_module", "json"} // the order does not matter
	if found, ok := s.Find(w); !ok || fmt.Sprint(found) != fmt.Sprint(made) {
		t.Errorf("found %+v, %v", found, ok)
	}
	if again := mustBuild(t, s, w); !again.Made.Equal(made.Made) {
		t.Error("built again")
	}

	m := mustRestore(t, s, made)
	const code = "import sys; 'json' in sys.modules, sorted(n for n in globals() if n[0] != '_'), hasattr(__builtins__, '_'), sys._getframe().f_code.co_filename"
	if got := run(t, m, "python", code).value; got != "(True, ['sys'], False, '<cell 1>')" {
		t.Errorf("got %s", got)
	}
}

func TestBuildRefuses(t *testing.T) {
	s := open(t).another(t, nil)
	w := python()
	w.Language = "cobol"
	if _, err := s.Build(t.Context(), w, nil); !errors.Is(err, engine.ErrUnsupported) || !strings.Contains(err.Error(), "build template python (small): ") {
		t.Errorf("got %v", err)
	}
	for _, module := range []string{"", "a b", "a\nb", "../x", "\x00", strings.Repeat("a", 200)} {
		w := python()
		w.Preload = []string{module}
		if _, err := s.Build(t.Context(), w, nil); !errors.Is(err, engine.ErrInvalid) {
			t.Errorf("%q: got %v", module, err)
		}
	}
}
