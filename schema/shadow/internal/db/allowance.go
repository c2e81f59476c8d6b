package db

import (
	"sync"
	"time"

	"github.com/db-controller/db-controller/schema/peer"
)

// Allowance bounds the rows that each other deployment can make this process store about attempts that have nothing here. Such a row
// keeps a late message of the attempt from taking effect, so that it is needed when the attempt is real, and nothing shows that.
type Allowance struct {
	most int64 // at once, and in an hour
	now  func() time.Time

	mu   sync.Mutex
	used map[int32]allowed // by deployment; guarded by mu
}

type allowed struct {
	rows float64
	at   time.Time
}

func newAllowance(most int64, now func() time.Time) *Allowance {
	return &Allowance{most: most, now: now, used: map[int32]allowed{}}
}

// Take counts rows for a deployment. It fails with peer.ErrQuota, and counts none, when they are too many.
func (a *Allowance) Take(deployment int32, rows int) error {
	if rows == 0 {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	now, u := a.now(), a.used[deployment]
	if past := now.Sub(u.at); past > 0 {
		u.rows, u.at = max(0, u.rows-past.Hours()*float64(a.most)), now
	}
	if u.rows+float64(rows) > float64(a.most) {
		return peer.ErrQuota
	}
	u.rows += float64(rows)
	a.used[deployment] = u
	return nil
}
