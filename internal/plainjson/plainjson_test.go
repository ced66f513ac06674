package plainjson

import "testing"

func TestMarshal(t *testing.T) {
	got, err := Marshal(map[string]string{"a<b": "x && y\n"})
	if want := `{"a<b":"x && y\n"}`; err != nil || string(got) != want {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
	if _, err := Marshal(func() {}); err == nil {
		t.Error("a function is encoded")
	}
}
