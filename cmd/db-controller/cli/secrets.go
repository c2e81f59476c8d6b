package cli

import (
	"net/url"
	"regexp"
	"strings"
)

// passwordField finds a password of a connection string of keywords and values, in which quotes and \ protect
// blanks.
var passwordField = regexp.MustCompile(`(?i)(password\s*=\s*)('(?:[^'\\]|\\.)*'?|(?:[^\s\\]|\\.)+)`)

// withoutPassword returns a connection string for people. One that is none is hidden: the password may be
// anywhere in it.
func withoutPassword(dsn string) string {
	if u, err := url.Parse(dsn); err == nil && (u.Scheme == "postgres" || u.Scheme == "postgresql") {
		query := u.Query()
		for key := range query {
			if strings.Contains(strings.ToLower(key), "password") {
				query.Set(key, "xxxxx")
				u.RawQuery = query.Encode()
			}
		}
		return u.Redacted()
	}
	if dsn != "" && (strings.Contains(dsn, "://") || !strings.Contains(dsn, "=")) {
		return "xxxxx"
	}
	return passwordField.ReplaceAllString(dsn, "${1}xxxxx")
}

// secrets match the passwords, tokens and private keys that people paste into reasons, and that other systems
// write into errors. They hide too much rather than too little.
var secrets = []struct {
	found *regexp.Regexp
	stays string
}{
	{
		regexp.MustCompile(`(?s)-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY-----|$)`),
		`REDACTED`,
	},
	{regexp.MustCompile(
		`(?i)(\b(?:authorization|(?:set-)?cookie)["']?\s*[=:]\s*["']?(?:(?:bearer|basic|token|digest|negotiate|apikey) )?)[^\n]*`), `${1}REDACTED`},
	{regexp.MustCompile(`(://[^\s/:@"']*):[^\s"']+@`), `$1:REDACTED@`},
	{regexp.MustCompile(`://[^\s/:@"']{20,}@`), `://REDACTED@`}, // a token as the user
	{regexp.MustCompile(`\b([\w.-]+):[^\s@/:"']+@`), `$1:REDACTED@`},
	{regexp.MustCompile(`((?:^|\s)(?:-u|--user)[ =]+[^\s:]+):\S+`), `$1:REDACTED`},
	// host:port:database:user:password of a file of passwords
	{regexp.MustCompile(`([\w.*-]+:(?:\d+|\*):[^\s:]+:[^\s:]+):\S+`), `$1:REDACTED`},
	{regexp.MustCompile(`(?i)(password\s+)'(?:[^']|'')*'`), `$1'REDACTED'`}, // SQL
	{
		regexp.MustCompile(`(?i)((?:password|passwd|passphrase|secret|api-key|--token) +)([^\s'"]*[0-9][^\s'"]*)`),
		`${1}REDACTED`,
	},
	{regexp.MustCompile(`(?i)([\w.-]*(?:` + secretWords +
		`)[\w.-]*["']?\s*[=:]\s*)("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.|'')*'|(?:[^\s&\\]|\\.)+)`), `${1}REDACTED`},
	{regexp.MustCompile(`(?i)\b(bearer) +[\w.~+/-]+=*`), `$1 REDACTED`},
	{regexp.MustCompile(`(?i)\b(basic) +[A-Za-z0-9+/]{8,}=*`), `$1 REDACTED`},
	{regexp.MustCompile(`\beyJ[\w-]+\.[\w-]+(?:\.[\w-]*)*`), `REDACTED`},
	{regexp.MustCompile(`\b(?:gh[opsur]_|github_pat_|glpat-|xox[a-z]-|sk-|AKIA|ASIA|AIza|hvs\.)[\w-]{8,}`), `REDACTED`},
	// Random keys: hexadecimal digits, more than a commit has, and base64 with its padding.
	{regexp.MustCompile(`\b[0-9a-fA-F]{48,}\b`), `REDACTED`},
	{regexp.MustCompile(`[A-Za-z0-9+/_-]{22,}={1,2}(\W|$)`), `REDACTED$1`},
}

const secretWords = `password|passwd|passphrase|pwd|secret|token|api[_-]?key|access[_-]?key|private[_-]?key|credential`

// WithoutSecrets returns a text of people or of other systems without passwords, tokens and private keys.
func WithoutSecrets(text string) string {
	for _, s := range secrets {
		text = s.found.ReplaceAllString(text, s.stays)
	}
	return text
}
