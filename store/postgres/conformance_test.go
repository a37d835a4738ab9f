package postgres_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/gotenure/tenure/driver"
	"github.com/gotenure/tenure/driver/drivertest"
)

func TestConformance(t *testing.T) {
	storeURL, schema := newSchema(t)
	operator := connect(t, storeURL)
	drivertest.Run(t, func(t *testing.T) drivertest.Harness { return harness(storeURL, operator, schema) })
}

func harness(storeURL string, operator *pgx.Conn, schema string) drivertest.Harness {
	return drivertest.Harness{
		Open: func(t testing.TB) driver.Store { return openStoreOnly(t, storeURL) },
		DeleteRecord: func(t testing.TB, election string) {
			exec(t, storeURL, `DELETE FROM `+schema+`.elections WHERE name = $1`, election)
		},
		OverwriteRecord: func(t testing.TB, election, session string) {
			exec(t, storeURL, `UPDATE `+schema+`.elections SET session = $2, member = (SELECT member FROM `+schema+`.sessions WHERE id = $2),
				token = nextval('`+schema+`.token') WHERE name = $1`, election, session)
		},
		DropSession: func(t testing.TB, session string) {
			exec(t, storeURL, `DELETE FROM `+schema+`.sessions WHERE id = $1`, session)
		},
		CorruptRecord: func(t testing.TB, election string) {
			exec(t, storeURL, `INSERT INTO `+schema+`.elections (name, token) VALUES ($1, -7)
				ON CONFLICT (name) DO UPDATE SET token = -7, session = 'nobody', member = ''`, election)
		},
		Resources: func(t testing.TB) int {
			return int(query[int64](t, operator, `SELECT (SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tenure' AND datname = current_database())
				+ (SELECT count(*) FROM `+schema+`.sessions) + (SELECT count(*) FROM `+schema+`.waiters)`))
		},
		TTL: 2 * time.Second,
	}
}
