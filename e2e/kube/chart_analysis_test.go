package kube_test

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// analyze does what the demo does with its data, as far as an image with nothing but
// Python and a shell can: upload, analyse in a program, check in a shell, fetch the result.
func analyze(ctx context.Context, t *testing.T, c *mcp.ClientSession, session string) {
	t.Helper()
	data, err := os.ReadFile("../../examples/demo/data/seattle-weather.csv")
	if err != nil {
		t.Fatal(err)
	}
	with := func(args map[string]any) map[string]any { args["session_id"] = session; return args }
	if a := call(ctx, t, c, "upload_file", with(map[string]any{"path": "weather.csv", "content": string(data)})); a.Size != len(data) {
		t.Errorf("the upload answers %+v", a)
	}
	years := call(ctx, t, c, "execute_code", with(map[string]any{"code": `
import collections, csv
rain = collections.Counter()
for row in csv.DictReader(open('weather.csv')):
    rain[row['date'][:4]] += row['weather'] == 'rain'
print(*sorted(rain.items()))
with open('rain.txt', 'w') as f:
    for year in sorted(rain):
        print(year, rain[year], file=f)
`}))
	shell := call(ctx, t, c, "execute_command", with(map[string]any{"command": `awk -F, '$6 == "rain" {n[substr($1, 1, 4)]++} END {for (y in n) print y, n[y]}' weather.csv | sort`}))
	file := call(ctx, t, c, "download_file", with(map[string]any{"path": "rain.txt"}))
	if !years.Success || !strings.Contains(years.Stdout, "('2015', ") || shell.Stdout != file.Content || len(strings.Fields(file.Content)) != 8 {
		t.Errorf("Python prints %+v, the shell %+v, and the file is %+v", years, shell, file)
	}
}
