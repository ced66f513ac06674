package main

import (
	"context"
	"errors"
	"fmt"
)

// fork changes a copy of the context and checks that the original is unchanged.
func (d *run) fork(ctx context.Context) (string, error) {
	a, err := d.call(ctx, "fork_context", map[string]any{"context_id": d.context, "name": "another way"})
	if err != nil {
		return "", err
	}
	copied, _ := a.fields["context_id"].(string)
	there, _, err := d.code(ctx, copied, `df = df[df.weather == "rain"]; print(len(df))`)
	if err != nil {
		return "", err
	}
	here, _, err := d.code(ctx, d.context, `print(len(df))`)
	if err != nil {
		return "", err
	}
	if there == here {
		return "", fmt.Errorf("both have %s rows", here)
	}
	_, err = d.call(ctx, "stop_context", map[string]any{"context_id": copied})
	return fmt.Sprintf("the copy has %s rows, the original %s", there, here), err
}

// rollBack destroys the data and restores a snapshot.
func (d *run) rollBack(ctx context.Context) (string, error) {
	a, err := d.call(ctx, "snapshot_context", map[string]any{"context_id": d.context, "name": "before"})
	if err != nil {
		return "", err
	}
	if _, _, err := d.code(ctx, d.context, `import os; os.remove("weather.csv"); df = None; print("spoilt")`); err != nil {
		return "", err
	}
	if _, err := d.call(ctx, "restore_context", map[string]any{"snapshot_id": a.fields["snapshot_id"], "context_id": d.context}); err != nil {
		return "", err
	}
	out, _, err := d.code(ctx, d.context, `import os; print(len(df), os.path.getsize("weather.csv"))`)
	if err != nil {
		return "", err
	}
	return "variables and files are back", want(out, fmt.Sprintf("1461 %d", len(d.csv)))
}

// restart stops the server and starts another one, which must have the same contexts.
func (d *run) restart(ctx context.Context) (string, error) {
	if err := d.stop(); err != nil {
		return "", err
	}
	if _, err := d.launch(ctx); err != nil {
		return "", err
	}
	if _, err := d.connect(ctx); err != nil {
		return "", err
	}
	out, _, err := d.code(ctx, d.context, `print(len(df))`)
	if err != nil {
		return "", err
	}
	if out != "1461" {
		return "", errors.New("the context came back without its data: " + out)
	}
	return "the context was on disk and woke with its variables", nil
}
