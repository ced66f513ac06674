package server

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/server/tools"
)

// initialize without params is refused as a request with wrong params, over both
// transports; over stdio the next one begins the session.
func TestInitialize_WithoutParams(t *testing.T) {
	check := func(t *testing.T, answer string) {
		t.Helper()
		var m struct {
			ID    json.RawMessage
			Error *jsonrpc.Error
		}
		if err := json.Unmarshal([]byte(answer), &m); err != nil || string(m.ID) != "1" || m.Error == nil ||
			m.Error.Code != jsonrpc.CodeInvalidParams || !strings.Contains(m.Error.Message, "initialize needs params, an object with protocolVersion") {
			t.Errorf("got %s, %v, want an error of code %d", answer, err, jsonrpc.CodeInvalidParams)
		}
	}
	_, url := serve(t, nil)
	for _, params := range []string{``, `,"params":null`} {
		wrong := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"initialize"%s}`, params)
		t.Run("http"+params, func(t *testing.T) {
			res, body := do(t, http.MethodPost, url, nil, wrong)
			if res.StatusCode != http.StatusBadRequest {
				t.Errorf("got %s", res.Status)
			}
			check(t, body)
		})
		t.Run("stdio"+params, func(t *testing.T) {
			s := New(Options{Version: "test", Tools: tools.Deps{Boxes: box.New(box.DefaultConfig(), box.Parts{})}, Log: testLog(t)})
			var out bytes.Buffer
			if err := s.ServeStdio(context.Background(), strings.NewReader(wrong+"\n"+initBody+"\n"), &out); err != nil {
				t.Error(err)
			}
			first, second, _ := strings.Cut(out.String(), "\n")
			check(t, first)
			if !strings.Contains(second, `"serverInfo"`) {
				t.Errorf("initialize with params after that: got %s", second)
			}
		})
	}
}
