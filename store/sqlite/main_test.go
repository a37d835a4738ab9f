package sqlite_test

import "time"

// patience bounds waits for what must happen. It is waited out only when a test fails.
const patience = 30 * time.Second
