package oci

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// TestUserEnv: of the variables of an image, those that a box sets itself, malformed ones and
// those beyond the bound are left out.
func TestUserEnv(t *testing.T) {
	got := userEnv([]string{
		"LANG=de_DE.UTF-8", "http_proxy=http://proxy.corp.example:3128", "HTTPS_PROXY=x", "no_proxy=x", "ALL_PROXY=x", "HOME=/root", "USER=root", "LOGNAME=root", "SHELL=/bin/zsh", "LD_PRELOAD=/evil.so", "=x", "none", "NUL=a\x00b", "EMPTY=", "PATH=/opt/app/bin",
	})
	want := []string{"LANG=de_DE.UTF-8", "EMPTY=", "PATH=" + launchers + ":" + userPrograms + ":/opt/app/bin:" + strings.Join(standardDirs, ":")}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	var many []string
	for n := range 1000 {
		many = append(many, fmt.Sprintf("V%d=%s", n, strings.Repeat("x", 1000)))
	}
	if size := len(strings.Join(userEnv(many), "")); size == 0 || size > maxEnv {
		t.Errorf("%d bytes of a large environment are taken, want some, and at most %d", size, maxEnv)
	}
}
