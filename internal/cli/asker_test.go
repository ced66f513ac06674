package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/gateway/gatewaytest"
)

// asker is a program that serves MCP and sends requests to its callers.
func asker() {
	s := gatewaytest.New("a", os.Getenv("ASKER_NOTES"))
	if err := s.Run(context.Background(), &mcp.StdioTransport{}); err != nil && !errors.Is(err, io.EOF) {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
