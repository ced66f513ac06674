package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/mcpkit"
)

// A script performs the client's part of a scenario. The suite judges the messages; a
// script fails if the scenario cannot have succeeded.
type script func(context.Context, *mcpkit.Session, *facts) error

var scripts = map[string]script{
	"initialize":                          listTools,
	"request-metadata":                    listTools,
	"json-schema-ref-no-deref":            listTools,
	"tools_call":                          call(map[string]any{"a": 5, "b": 3}, "add_numbers"),
	"elicitation-sep1034-client-defaults": call(nil, "test_client_elicitation_defaults"),
	"sse-retry":                           call(nil, "test_reconnection"),
	"sep-2322-client-request-state":       call(nil, "test_mrtr_echo_state", "test_mrtr_no_state", "test_mrtr_unrelated", "test_mrtr_no_result_type"),
	"http-standard-headers":               useAll,
	"http-custom-headers":                 callAsTold,
	"http-invalid-tool-headers":           callAll,
	"json-schema-2020-12-preservation":    echoSchema,

	// Servers that require a login.
	"auth/2025-03-26-oauth-endpoint-fallback":   useTestTool,
	"auth/2025-03-26-oauth-metadata-backcompat": useTestTool,
	"auth/authorization-server-migration":       useTestTool,
	"auth/basic-cimd":                           useTestTool,
	"auth/client-credentials-basic":             useTestTool,
	"auth/client-credentials-jwt":               useTestTool,
	"auth/iss-normalized":                       refuse("the authorization response is from"),
	"auth/iss-not-advertised":                   useTestTool,
	"auth/iss-supported":                        useTestTool,
	"auth/iss-supported-missing":                refuse("does not name the issuer"),
	"auth/iss-unexpected":                       refuse("the authorization response is from"),
	"auth/iss-wrong-issuer":                     refuse("the authorization response is from"),
	"auth/metadata-default":                     useTestTool,
	"auth/metadata-issuer-mismatch":             refuse("it belongs to the issuer"),
	"auth/metadata-var1":                        useTestTool,
	"auth/metadata-var2":                        useTestTool,
	"auth/metadata-var3":                        useTestTool,
	"auth/offline-access-not-supported":         useTestTool,
	"auth/offline-access-scope":                 useTestTool,
	"auth/pre-registration":                     useTestTool,
	"auth/resource-mismatch":                    refuse("it describes"),
	"auth/scope-from-scopes-supported":          useTestTool,
	"auth/scope-from-www-authenticate":          useTestTool,
	"auth/scope-omitted-when-undefined":         useTestTool,
	"auth/scope-retry-limit":                    refuse("already requested"),
	"auth/scope-step-up":                        useTestTool,
	"auth/token-endpoint-auth-basic":            useTestTool,
	"auth/token-endpoint-auth-none":             useTestTool,
	"auth/token-endpoint-auth-post":             useTestTool,
}

var useTestTool = call(nil, "test-tool")

// refuse returns a script for servers that the kit must refuse for a given reason.
func refuse(reason string) script {
	return func(ctx context.Context, s *mcpkit.Session, told *facts) error {
		err := useTestTool(ctx, s, told)
		if err == nil || !strings.Contains(err.Error(), reason) {
			return fmt.Errorf("want a refusal because %q, got %v", reason, err)
		}
		return nil
	}
}

func listTools(ctx context.Context, s *mcpkit.Session, _ *facts) error {
	_, err := s.Tools(ctx)
	return err
}

// call lists the tools and calls some.
func call(arguments map[string]any, names ...string) script {
	if arguments == nil {
		arguments = map[string]any{}
	}
	return func(ctx context.Context, s *mcpkit.Session, _ *facts) error {
		if _, err := s.Tools(ctx); err != nil {
			return err
		}
		for _, name := range names {
			res, err := s.CallTool(ctx, &mcp.CallToolParams{Name: name, Arguments: arguments})
			if err != nil {
				return err
			}
			if res.IsError {
				return fmt.Errorf("the tool %q failed", name)
			}
		}
		return nil
	}
}

// useAll uses the first of each thing that the server offers.
func useAll(ctx context.Context, s *mcpkit.Session, told *facts) error {
	tools, err := s.Tools(ctx)
	if err != nil {
		return err
	}
	resources, err := s.Resources(ctx)
	if err != nil {
		return err
	}
	prompts, err := s.Prompts(ctx)
	if err != nil {
		return err
	}
	if len(tools) == 0 || len(resources) == 0 || len(prompts) == 0 {
		return fmt.Errorf("the server has %d tools, %d resources, %d prompts; want some of each", len(tools), len(resources), len(prompts))
	}
	if _, err := s.CallTool(ctx, &mcp.CallToolParams{Name: tools[0].Name, Arguments: map[string]any{}}); err != nil {
		return err
	}
	if _, err := s.ReadResource(ctx, resources[0].URI); err != nil {
		return err
	}
	_, err = s.GetPrompt(ctx, prompts[0].Name, nil)
	return err
}

// callAsTold makes the calls that the suite lists.
func callAsTold(ctx context.Context, s *mcpkit.Session, told *facts) error {
	if _, err := s.Tools(ctx); err != nil {
		return err
	}
	if len(told.ToolCalls) == 0 {
		return fmt.Errorf("the suite says no calls to make")
	}
	for _, c := range told.ToolCalls {
		if _, err := s.CallTool(ctx, c); err != nil {
			return err
		}
	}
	return nil
}

// callAll calls every tool that the kit accepts.
func callAll(ctx context.Context, s *mcpkit.Session, _ *facts) error {
	tools, err := s.Tools(ctx)
	if err != nil {
		return err
	}
	for _, t := range tools {
		if _, err := s.CallTool(ctx, &mcp.CallToolParams{Name: t.Name, Arguments: map[string]any{"region": "us-west1"}}); err != nil {
			return err
		}
	}
	return nil
}

// echoSchema sends the schema of a tool back as the client sees it.
func echoSchema(ctx context.Context, s *mcpkit.Session, _ *facts) error {
	tools, err := s.Tools(ctx)
	if err != nil {
		return err
	}
	for _, t := range tools {
		if t.Name != "json_schema_2020_12_tool" {
			continue
		}
		_, err := s.CallTool(ctx, &mcp.CallToolParams{Name: "json_schema_echo", Arguments: map[string]any{"schema": t.InputSchema}})
		return err
	}
	return fmt.Errorf("the server has no tool json_schema_2020_12_tool")
}
