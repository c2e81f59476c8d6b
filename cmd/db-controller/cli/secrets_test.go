package cli

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Each text with "hid" or "den" is a secret. The text around it stays readable.
func TestTextsHaveNoSecrets(t *testing.T) {
	t.Parallel()
	for text, stays := range map[string]string{
		"postgres://eve:hid/den@db/x?sslpassword=hidden&sslmode=require fails":         "postgres://eve:REDACTED@db/x?sslpassword=REDACTED&sslmode=require fails",
		"dial eve:hidden@tcp(db:3306)/x: refused":                                      "dial eve:REDACTED@tcp(db:3306)/x: refused",
		"https://ahiddentokenofmanyletters@git.example.org/x":                          "https://REDACTED@git.example.org/x",
		`host=db password='hid\' den' port=1`:                                          "host=db password=REDACTED port=1",
		`host=db password = hid\ den port=1`:                                           "host=db password = REDACTED port=1",
		`host=db password=hid,den port=1`:                                              "host=db password=REDACTED port=1",
		`{"user": "eve", "password": "hid \" den", "port": 1}`:                         `{"user": "eve", "password": REDACTED, "port": 1}`,
		"PGPASSWORD=hidden psql":                                                       "PGPASSWORD=REDACTED psql",
		"client_secret: hidden":                                                        "client_secret: REDACTED",
		"GET /x?access_token=hidden&y=1":                                               "GET /x?access_token=REDACTED&y=1",
		"X-Api-Key: hidden":                                                            "X-Api-Key: REDACTED",
		"secret hunter2hid":                                                            "secret REDACTED",
		"login --token hidden1":                                                        "login --token REDACTED",
		"Authorization: hidden":                                                        "Authorization: REDACTED",
		"Authorization: Digest username=\"hid\", response=\"den\"\nnext":               "Authorization: Digest REDACTED\nnext",
		"Cookie: session=hidden; other=hidden":                                         "Cookie: REDACTED",
		"sent Basic aGlkaGlkZGVuCg==":                                                  "sent Basic REDACTED",
		"curl -u eve:hidden https://x":                                                 "curl -u eve:REDACTED https://x",
		"db.example.org:5432:*:eve:hidden":                                             "db.example.org:5432:*:eve:REDACTED",
		"ALTER ROLE eve PASSWORD 'hid''den'":                                           "ALTER ROLE eve PASSWORD 'REDACTED'",
		"-----BEGIN EC PRIVATE KEY-----\nhid\nden\n-----END EC PRIVATE KEY-----\nrest": "REDACTED\nrest",
		"-----BEGIN PRIVATE KEY-----\nhid\nden":                                        "REDACTED",
		"ghp_hiddenhidden1234 was revoked":                                             "REDACTED was revoked",
		"key hiddenhiddenhiddenhiddenhidden=, done":                                    "key REDACTED, done",
		"key 00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff":         "key REDACTED",
		"eyJhbGciOiJFUzI1NiJ9.hidden.hidden":                                           "REDACTED",

		"password authentication failed for user \"eve\", ticket 4711 on 2026-11-26T08:30:23Z": "password authentication failed for user \"eve\", ticket 4711 on 2026-11-26T08:30:23Z",
		"build 33031315ee676af1ba937ff96b5c61f79b911e51 of db.example.org:5432":                "build 33031315ee676af1ba937ff96b5c61f79b911e51 of db.example.org:5432",
	} {
		require.Equal(t, stays, WithoutSecrets(text))
	}
}

func TestConnectionStringsHaveNoPasswords(t *testing.T) {
	t.Parallel()
	for dsn, shown := range map[string]string{
		"postgres://u:hidden@h/db":                             "postgres://u:xxxxx@h/db",
		"postgres://u@h/db?password=hidden&sslpassword=hidden": "postgres://u@h/db?password=xxxxx&sslpassword=xxxxx",
		`host=h password='it\'s hidden' user=u`:                "host=h password=xxxxx user=u",
		`host=h password = hid\ den SSLPASSWORD=hidden user=u`: "host=h password = xxxxx SSLPASSWORD=xxxxx user=u",
		"host=h password='hidden":                              "host=h password=xxxxx",
		"u:hidden@h/db":                                        "xxxxx",
		"hidden":                                               "xxxxx",
		"postgres://u:hi/dden@h/db":                            "xxxxx",
		"":                                                     "",
		"host=/run/postgresql dbname=x":                        "host=/run/postgresql dbname=x",
	} {
		require.Equal(t, shown, withoutPassword(dsn))
	}
}
