package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// hostLimit bounds one request.
const hostLimit = 10 * time.Second

// judgeHost adds a row of our own for DNS rebinding. The suite sends a foreign Origin
// with each foreign Host, so it passes a server that does not check Host. A page whose
// name resolves to loopback has the same origin as the server, and its GET requests
// carry no Origin.
func judgeHost(ctx context.Context, all *results, target, url string) error {
	r := row{target: target, set: "all", scenario: "Host header alone", scored: true}
	const call = `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`
	for _, c := range []struct {
		method, accept, body, host string
		allowed                    bool
	}{
		{http.MethodPost, "application/json", call, "localhost", true},
		{http.MethodPost, "application/json", call, "127.0.0.1:9", true},
		{http.MethodPost, "application/json", call, "evil.example.com", false},
		{http.MethodPost, "application/json", call, "localhost.evil.example.com:80", false},
		{http.MethodGet, "application/json", "", "evil.example.com", false},
		{http.MethodGet, "text/event-stream", "", "evil.example.com", false},
		{http.MethodDelete, "", "", "evil.example.com", false},
	} {
		status, err := askAs(ctx, c.method, url, c.host, c.accept, c.body)
		if err != nil {
			return err
		}
		if refused := status == http.StatusForbidden; refused == c.allowed {
			r.failures = append(r.failures, fmt.Sprintf("%s with Host %s and no Origin: got status %d", c.method, c.host, status))
			continue
		}
		r.passed++
	}
	all.add(r)
	return nil
}

// askAs sends one request with a Host header and returns the status.
func askAs(ctx context.Context, method, url, host, accept, body string) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, hostLimit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return 0, err
	}
	req.Host = host
	req.Header.Set("Accept", accept)
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, fmt.Errorf("ask under another name: %w", err)
	}
	defer res.Body.Close()
	_, err = io.CopyN(io.Discard, res.Body, maxResult)
	if err != nil && err != io.EOF {
		return 0, fmt.Errorf("ask under another name: %w", err)
	}
	return res.StatusCode, nil
}
