package revision_test

import (
	"slices"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/revision"
)

// TestRevisions_SDKServesThem fails when an upgrade of the SDK adds or drops a
// revision: then a maintainer has to decide what it means for Glovebox.
func TestRevisions_SDKServesThem(t *testing.T) {
	want := []string{revision.Modern, revision.LastLegacy, revision.NoBatch, "2025-03-26", "2024-11-05"}
	if got := mcp.SupportedProtocolVersions(); !slices.Equal(got, want) {
		t.Errorf("the SDK serves %v, want %v", got, want)
	}
}
