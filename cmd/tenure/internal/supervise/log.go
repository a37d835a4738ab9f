package supervise

import (
	"log/slog"
	"os"
)

// logger writes where and how tenure run does.
func logger() *slog.Logger { return slog.New(slog.NewTextHandler(os.Stderr, nil)) }
