package sqlite

import (
	"context"
	"log/slog"
	"time"
)

// A poll is the state of Version, which is called by one goroutine at a time while something waits.
type poll struct {
	database *database
	opened   int64 // how many databases it has seen
	version  int64 // the last data_version
	watch    *watch
	blind    bool // the file system does not tell of writes
}

// openWatch is newWatch except in tests.
var openWatch = newWatch

// backstop is how long Version trusts the file system to tell of writes.
const backstop = time.Second

// Version implements sqlstore.Changer. Where the file system tells of writes (inotify) it returns when there was a commit, and so costs nothing while there
// is none; elsewhere it returns at once, and its caller comes back every 20 ms.
func (e *engine) Version(ctx context.Context) (int64, error) {
	p := &e.poll
	d, err := e.database(ctx)
	if err != nil {
		return 0, err
	}
	if d != p.database {
		p.close()
		p.database = d
		p.opened++
		if !p.blind {
			if p.watch, err = openWatch(d.path, true); err != nil {
				p.blind = true
				e.log.Debug("looking for changes of the SQLite file every 20 ms", "file", d.path, slog.Any("error", err))
			}
		}
	}
	before := p.version
	if p.version, err = d.version(ctx); err != nil {
		return 0, err
	}
	if p.watch != nil && p.version == before {
		if err := e.await(ctx, d); err != nil {
			return 0, err
		}
	}
	// data_version is a number of 32 bits that means nothing in another database.
	return p.opened<<32 + p.version, nil
}

// await waits until data_version has moved, or for the backstop.
func (e *engine) await(ctx context.Context, d *database) error {
	p := &e.poll
	timer := time.NewTimer(backstop)
	defer timer.Stop()
	stirred := false
	select {
	case <-p.watch.stirred:
		stirred = true
	case <-timer.C:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	before := p.version
	// The write was seen, but it counts only once it is on the disk and committed, of which nothing is told. So look again after 0, 1, 2, 4 ms …
	// up to 20 ms, for a while.
	for pause, begin := time.Millisecond, time.Now(); ; pause = min(2*pause, 20*time.Millisecond) {
		var err error
		if p.version, err = d.version(ctx); err != nil {
			return err
		}
		if p.version != before {
			break
		}
		if !stirred || time.Since(begin) > backstop || !d.same() {
			return nil
		}
		timer.Reset(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	if !stirred {
		select {
		case <-p.watch.stirred: // just now
		default:
			p.blind = true
			p.close()
			e.log.Warn("the file system does not tell of writes by other processes; looking for changes every 20 ms", "file", d.path)
		}
	}
	return nil
}

func (p *poll) close() {
	if p.watch != nil {
		p.watch.close()
		p.watch = nil
	}
}
