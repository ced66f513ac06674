package address

import "testing"

func TestIsLoopback(t *testing.T) {
	for host, want := range map[string]bool{
		"localhost": true, "LocalHost:80": true, "127.0.0.1": true, "127.9.9.9:1": true, "::1": true, "[::1]": true, "[::1]:443": true,
		"::ffff:127.0.0.1": true, "[::ffff:127.0.0.1]:80": true,
		"": false, ":80": false, "localhost.example.com": false, "localhost.": false, "0.0.0.0": false, "128.0.0.1": false, "::": false, "127.1": false, "127.0.0.1.": false,
	} {
		if got := IsLoopback(host); got != want {
			t.Errorf("%q: got %t, want %t", host, got, want)
		}
	}
}
