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

// asker is a server that asks its callers, as a program.
func asker() {
	s := gatewaytest.New("a", os.Getenv("ASKER_NOTES"))
	if err := s.Run(context.Background(), &mcp.StdioTransport{}); err != nil && !errors.Is(err, io.EOF) {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
