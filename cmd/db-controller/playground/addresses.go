package playground

import (
	"encoding/json"
	"net"
	"os"
	"path/filepath"

	"github.com/db-controller/db-controller/internal/atomicfile"
)

// addressesFile keeps the addresses of a folder's processes, so that a playground that starts there again has
// them again.
const addressesFile = "addresses.json"

// addresses returns two free addresses for each name: the addresses of the last start in this folder, if they
// are free.
func (p *Playground) addresses(names []string) (map[string][2]string, error) {
	path := filepath.Join(p.cfg.Dir, addressesFile)
	kept, found := map[string][2]string{}, map[string][2]string{}
	if raw, err := os.ReadFile(path); err == nil {
		_ = json.Unmarshal(raw, &kept) // other addresses serve as well
	}
	for _, name := range names {
		if pair := kept[name]; free(pair[0]) && free(pair[1]) {
			found[name] = pair
			continue
		}
		two, err := FreeAddresses(2)
		if err != nil {
			return nil, err
		}
		found[name] = [2]string{two[0], two[1]}
	}
	raw, err := json.MarshalIndent(found, "", "  ")
	if err != nil {
		return nil, err
	}
	return found, atomicfile.Write(path, append(raw, '\n'))
}

// free reports whether a process can listen at an address.
func free(address string) bool {
	if address == "" {
		return false
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return false
	}
	return l.Close() == nil
}
