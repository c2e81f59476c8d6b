package db

const (
	// ExpiredSQL is a condition on a tentative blockade b, to be followed by TentativeTTL, an interval, and
	// ")": it has expired, or its expiry is impossibly late because the clock went back. Resolving early
	// costs a retry of the write.
	ExpiredSQL = `(b.expires_at <= now() OR b.expires_at > now() + interval '1 s' + 2 * `
)
