package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"image/png"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// answer is the result of a tool.
type answer struct {
	text   string
	images [][]byte
	fields map[string]any // structuredContent
}

// call calls a tool. It returns an error if the tool fails.
func (r *run) call(ctx context.Context, tool string, args map[string]any) (*answer, error) {
	res, err := r.session.CallTool(ctx, &mcp.CallToolParams{Name: tool, Arguments: args})
	if err != nil {
		return nil, err
	}
	a := &answer{}
	for _, c := range res.Content {
		switch c := c.(type) {
		case *mcp.TextContent:
			a.text += c.Text
		case *mcp.ImageContent:
			a.images = append(a.images, c.Data)
		}
	}
	raw, err := json.Marshal(res.StructuredContent)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(raw, &a.fields); err != nil {
		return nil, err
	}
	if res.IsError {
		return nil, fmt.Errorf("%s: %s", tool, a.text)
	}
	return a, nil
}

// code runs code in a context and returns its output. It returns an error if the code
// fails.
func (r *run) code(ctx context.Context, contextID, code string) (string, *answer, error) {
	a, err := r.call(ctx, "run_code", map[string]any{"context_id": contextID, "code": code})
	if err != nil {
		return "", nil, err
	}
	stdout, _ := a.fields["stdout"].(string)
	if ok, _ := a.fields["success"].(bool); !ok {
		return "", nil, fmt.Errorf("the code failed: %s", a.text)
	}
	return strings.Trim(stdout, "\n"), a, nil
}

// want returns an error unless got contains part.
func want(got, part string) error {
	if !strings.Contains(got, part) {
		return fmt.Errorf("got %q, want %q in it", got, part)
	}
	return nil
}

func (r *run) createContext(ctx context.Context) (string, error) {
	a, err := r.call(ctx, "create_context", map[string]any{"name": "weather", "language": "python"})
	if err != nil {
		return "", err
	}
	r.context, _ = a.fields["context_id"].(string)
	return r.context, want(r.context, "ctx-")
}

func (r *run) upload(ctx context.Context) (string, error) {
	_, err := r.call(ctx, "upload_file", map[string]any{"context_id": r.context, "path": "weather.csv", "content": string(r.csv)})
	return fmt.Sprintf("weather.csv, %d bytes", len(r.csv)), err
}

func (r *run) load(ctx context.Context) (string, error) {
	out, _, err := r.code(ctx, r.context, `
import pandas as pd
df = pd.read_csv("weather.csv", parse_dates=["date"])
print(f"{len(df)} days, {df.date.min():%Y-%m-%d} to {df.date.max():%Y-%m-%d}")
`)
	if err != nil {
		return "", err
	}
	return out, want(out, "1461 days, 2012-01-01 to 2015-12-31")
}

func (r *run) group(ctx context.Context) (string, error) {
	// df still exists: state persists between calls.
	out, _, err := r.code(ctx, r.context, `
years = df.groupby(df.date.dt.year).agg(
    rain_mm=("precipitation", "sum"), rainy_days=("precipitation", lambda p: (p > 0).sum()),
    warmest=("temp_max", "max"), coldest=("temp_min", "min")).round(1)
years.index.name = "year"
years.to_csv("years.csv")
print(years.to_string())
`)
	if err != nil {
		return "", err
	}
	r.block = indent(out)
	return "df is kept from the call before", want(out, "1226.0") // mm in 2012
}

func (r *run) plot(ctx context.Context) (string, error) {
	_, a, err := r.code(ctx, r.context, `
import matplotlib.pyplot as plt
month = df.groupby(df.date.dt.month)
fig, rain = plt.subplots(figsize=(8, 4.5))
rain.bar(month.precipitation.sum().index, month.precipitation.sum() / 4, color="#7aa6c2")
rain.set(title="Seattle 2012-2015", xlabel="month", ylabel="rain per month (mm)", xticks=range(1, 13))
warm = rain.twinx()
warm.plot(month.temp_max.mean(), color="#c0504d", marker="o")
warm.set_ylabel("mean daily high (°C)")
fig.tight_layout()
plt.show()
`)
	if err != nil {
		return "", err
	}
	if len(a.images) != 1 {
		return "", fmt.Errorf("got %d images, want 1", len(a.images))
	}
	config, err := png.DecodeConfig(bytes.NewReader(a.images[0]))
	if err != nil {
		return "", fmt.Errorf("the image is no PNG: %w", err)
	}
	if err := os.WriteFile(r.figure, a.images[0], 0o644); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d x %d, saved as %s", config.Width, config.Height, r.figure), nil
}

func (r *run) download(ctx context.Context) (string, error) {
	a, err := r.call(ctx, "download_file", map[string]any{"context_id": r.context, "path": "years.csv"})
	if err != nil {
		return "", err
	}
	content, _ := a.fields["content"].(string)
	if a.fields["encoding"] == "base64" {
		raw, err := base64.StdEncoding.DecodeString(content)
		if err != nil {
			return "", err
		}
		content = string(raw)
	}
	if err := want(content, "year,rain_mm,rainy_days"); err != nil {
		return "", err
	}
	path := filepath.Join(filepath.Dir(r.figure), "years.csv")
	return "saved as " + path, os.WriteFile(path, []byte(content), 0o644)
}

func (r *run) shell(ctx context.Context) (string, error) {
	out, _, err := r.code(ctx, r.context, `!tail -n +2 weather.csv | cut -d, -f6 | sort | uniq -c | sort -rn | awk '{printf "%s %d  ", $2, $1}'`)
	if err != nil {
		return "", err
	}
	return out, want(out, "fog 101")
}

func (r *run) javascript(ctx context.Context) (string, error) {
	a, err := r.call(ctx, "create_context", map[string]any{"name": "weather-js", "language": "javascript"})
	if err != nil {
		return "", err
	}
	id, _ := a.fields["context_id"].(string)
	if _, err := r.call(ctx, "upload_file", map[string]any{"context_id": id, "path": "weather.csv", "content": string(r.csv)}); err != nil {
		return "", err
	}
	out, _, err := r.code(ctx, id, `
const fs = require("node:fs/promises");
const rows = (await fs.readFile("weather.csv", "utf8")).trim().split("\n").slice(1).map(l => l.split(","));
let dry = 0, best = 0, end = "";
for (const [date, rain] of rows) { dry = Number(rain) ? 0 : dry + 1; if (dry > best) { best = dry; end = date; } }
console.log("longest dry spell: " + best + " days, until " + end);
`)
	if err != nil {
		return "", err
	}
	return out, want(out, "48 days, until 2012-09-08")
}

// escapeFile looks for a file and an environment variable of the host.
func (r *run) escapeFile(ctx context.Context) (string, error) {
	out, _, err := r.code(ctx, r.context, fmt.Sprintf(`
import glob, os
found, secret = [], %q
def look(path):
    try:
        with open(path, "rb") as f:
            if secret.encode() in f.read(1 << 20): found.append(path)
    except OSError as e:
        return type(e).__name__
first = look(%q)
for path in ["/etc/shadow", *glob.glob("/proc/*/environ"), *glob.glob("/proc/*/root/tmp/*/secret.txt")]: look(path)
print("FOUND" if found or secret in str(os.environ) else "refused:", found or first)
`, r.secret, filepath.Join(r.dir, "secret.txt")))
	if err != nil {
		return "", err
	}
	// Search only files, because the code itself contains the secret.
	return out, want(out, "refused:")
}

// escapeNetwork tries to reach the internet, the cloud metadata address and the server
// itself on the host's loopback interface.
func (r *run) escapeNetwork(ctx context.Context) (string, error) {
	own, err := url.Parse(r.endpoint)
	if err != nil {
		return "", err
	}
	out, _, err := r.code(ctx, r.context, fmt.Sprintf(`
import socket
reached, why = [], ""
for host, port in [("1.1.1.1", 443), ("169.254.169.254", 80), ("127.0.0.1", %s), ("example.com", 80)]:
    try:
        socket.create_connection((host, port), timeout=2).close()
        reached.append(host)
    except OSError as e:
        why = why or e.strerror or str(e)
print("REACHED" if reached else "refused:", reached or why)
`, own.Port()))
	if err != nil {
		return "", err
	}
	return out, want(out, "refused:")
}

// escapeForkBomb starts a fork bomb in a separate box.
func (r *run) escapeForkBomb(ctx context.Context) (string, error) {
	a, err := r.call(ctx, "execute_command", map[string]any{
		"session_id": "bomb", "timeout": 3,
		"command": "bomb() { bomb | bomb & }; (bomb) >/dev/null 2>&1; sleep 1; echo lit",
	})
	what := "the shell was refused more processes"
	if err == nil && strings.Contains(a.text, "lit") {
		what = "contained"
	}
	a, err = r.call(ctx, "execute_command", map[string]any{"session_id": "bomb", "command": "echo well"})
	if err != nil {
		return "", fmt.Errorf("its own box is hurt: %w", err)
	}
	if created, _ := a.fields["session_created"].(bool); created {
		what = "its own box ended"
	}
	// In any case, the server and the other boxes must work.
	out, _, err := r.code(ctx, r.context, `print(len(df))`)
	if err != nil {
		return "", fmt.Errorf("the box next door is hurt: %w", err)
	}
	if err := want(out, "1461"); err != nil {
		return "", err
	}
	_, err = r.call(ctx, "stop_session", map[string]any{"session_id": "bomb"})
	return what + "; the box next door did not notice", err
}

// aftermath checks that the box, its state and the server are unharmed.
func (r *run) aftermath(ctx context.Context) (string, error) {
	out, _, err := r.code(ctx, r.context, `print(len(df), years.rain_mm.idxmax())`)
	if err != nil {
		return "", err
	}
	if err := want(out, "1461 "); err != nil {
		return "", err
	}
	a, err := r.call(ctx, "list_contexts", nil)
	if err != nil {
		return "", err
	}
	if total, _ := a.fields["total"].(float64); total != 2 {
		return "", fmt.Errorf("got %v contexts, want 2", a.fields["total"])
	}
	if _, err := r.session.ListTools(ctx, nil); err != nil {
		return "", fmt.Errorf("the server does not answer: %w", err)
	}
	return "variables, both contexts and the server", nil
}

func indent(s string) string {
	return "        " + strings.ReplaceAll(s, "\n", "\n        ") + "\n"
}
