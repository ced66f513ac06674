package mcpcli

import (
	"testing"

	"github.com/glovebox-dev/glovebox/mcpkit/mcpjson"
)

// Every command, serve too, waits for servers that npx downloads first.
func TestOptions_WaitForAnInstallation(t *testing.T) {
	dir := t.TempDir()
	a := &app{Env: Env{
		Err: t.Output(), StateDir: func() (string, error) { return dir, nil },
		Lookup: func(string) (string, bool) { return "", false },
	}}
	o, err := a.options(&mcpjson.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if o.Limits.Install != installTimeout {
		t.Errorf("Limits.Install is %v, want %v", o.Limits.Install, installTimeout)
	}
}
