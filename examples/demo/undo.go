package main

import (
	"context"
	"errors"
	"fmt"
)

// fork changes a copy of the context and checks that the original is unchanged.
func (r *run) fork(ctx context.Context) (string, error) {
	a, err := r.call(ctx, "fork_context", map[string]any{"context_id": r.context, "name": "another way"})
	if err != nil {
		return "", err
	}
	copied, _ := a.fields["context_id"].(string)
	there, _, err := r.code(ctx, copied, `df = df[df.weather == "rain"]; print(len(df))`)
	if err != nil {
		return "", err
	}
	here, _, err := r.code(ctx, r.context, `print(len(df))`)
	if err != nil {
		return "", err
	}
	if there == here {
		return "", fmt.Errorf("both have %s rows", here)
	}
	_, err = r.call(ctx, "stop_context", map[string]any{"context_id": copied})
	return fmt.Sprintf("the copy has %s rows, the original %s", there, here), err
}

// rollBack destroys the data and restores a snapshot.
func (r *run) rollBack(ctx context.Context) (string, error) {
	a, err := r.call(ctx, "snapshot_context", map[string]any{"context_id": r.context, "name": "before"})
	if err != nil {
		return "", err
	}
	if _, _, err := r.code(ctx, r.context, `import os; os.remove("weather.csv"); df = None; print("spoilt")`); err != nil {
		return "", err
	}
	if _, err := r.call(ctx, "restore_context", map[string]any{"snapshot_id": a.fields["snapshot_id"], "context_id": r.context}); err != nil {
		return "", err
	}
	out, _, err := r.code(ctx, r.context, `import os; print(len(df), os.path.getsize("weather.csv"))`)
	if err != nil {
		return "", err
	}
	return "variables and files are back", want(out, fmt.Sprintf("1461 %d", len(r.csv)))
}

// restart stops the server and starts another one, which must have the same contexts.
func (r *run) restart(ctx context.Context) (string, error) {
	if err := r.stop(); err != nil {
		return "", err
	}
	if _, err := r.launch(ctx); err != nil {
		return "", err
	}
	if _, err := r.connect(ctx); err != nil {
		return "", err
	}
	out, _, err := r.code(ctx, r.context, `print(len(df))`)
	if err != nil {
		return "", err
	}
	if out != "1461" {
		return "", errors.New("the context came back without its data: " + out)
	}
	return "the context was on disk and woke with its variables", nil
}
