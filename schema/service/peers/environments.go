package peers

import (
	"context"

	"github.com/db-controller/db-controller/schema"
)

// Follow updates the connections with each environment from one channel, and then sends it to the other one,
// which has one place: a newer environment replaces an older one that was not received yet. It returns nil
// when ctx ends.
func (p *Peers) Follow(ctx context.Context, from <-chan *schema.Environment, to chan *schema.Environment) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case env := <-from:
			p.Update(env)
			select {
			case <-to:
			default:
			}
			to <- env
		}
	}
}
