package image

import (
	"os"
	"reflect"
	"strings"
	"testing"
)

// TestRecall finds an image again, with and without a record of it, and says what
// is missing of one that is not whole.
func TestRecall(t *testing.T) {
	state := t.TempDir()
	img, err := Toolchain(t.Context(), ToolchainConfig{StateDir: state})
	if err != nil {
		t.Fatal(err)
	}
	key := img.Root.Key
	if _, err := Recall(state, key, Python); err == nil {
		t.Error("an image without a record is recalled")
	}
	if old, ok := img.Unrecorded(state, key); !ok || !reflect.DeepEqual(old.Root, img.Root) {
		t.Errorf("the image of an earlier version: got %+v, %t, want %+v", old, ok, img.Root)
	}
	for _, bad := range []string{"", "../x", "0123456789abcdef"} {
		if _, ok := img.Unrecorded(state, bad); ok {
			t.Errorf("there is an image %q", bad)
		}
	}
	if err := img.Remember(state); err != nil {
		t.Fatal(err)
	}
	got, err := Recall(state, key, Python)
	if err != nil || !reflect.DeepEqual(got.Root, img.Root) || !reflect.DeepEqual(got.Interpreters, img.Interpreters) {
		t.Errorf("got %+v, %v; want %+v", got, err, img)
	}
	gone := *img
	gone.Root.Key = "gone"
	gone.Interpreters = map[string]Interpreter{JavaScript: {Language: JavaScript, Path: "/nonexistent/node", Version: "20.20.2"}}
	if err := gone.Remember(state); err != nil {
		t.Fatal(err)
	}
	if _, err := Recall(state, "gone", JavaScript); err == nil || !strings.Contains(err.Error(), "made with node 20.20.2 at /nonexistent/node") {
		t.Errorf("without its node: %v", err)
	}
	if got, err := Recall(state, "gone", Python); err != nil || len(got.Interpreters) != 0 {
		t.Errorf("a box of the other language: %+v, %v", got, err)
	}
	if err := os.WriteFile(recordPath(state, key), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Recall(state, key, Python); err == nil || !strings.Contains(err.Error(), "cannot be read") {
		t.Errorf("a damaged record: %v", err)
	}
}
