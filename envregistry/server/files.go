package server

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/internal/requestid"
	"github.com/db-controller/db-controller/schema"
)

// filesInterval is the time between two looks at the files that a server applies.
const filesInterval = 5 * time.Second

// Files are applied by a server itself: a new or restored registry is right without an operator.
type Files struct {
	server *Server
	paths  []string
	looked bool
	// digest is of the contents as they were read last, and history the part of the registry's history that
	// was current then.
	digest  [sha256.Size]byte
	history string
	failed  string // why the contents could not be applied; empty: they are
}

// Files returns files, and folders of files (schema.ReadFiles), for the server to apply.
func (s *Server) Files(paths []string) *Files { return &Files{server: s, paths: paths} }

// Follow looks at the files until ctx ends. Files that cannot be applied change nothing, and are tried again.
func (f *Files) Follow(ctx context.Context) error {
	for {
		if err := f.Look(ctx); err != nil && ctx.Err() == nil && err.Error() != f.failed {
			f.failed = err.Error()
			f.server.log.Warn("the files of --apply are not applied: correct them, or apply them by hand",
				zap.Error(err))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(filesInterval):
		}
	}
}

const (
	selectFilesSQL = `SELECT COALESCE(files, '') FROM dbcontroller_registry.meta`
	storeFilesSQL  = `UPDATE dbcontroller_registry.meta SET files = $1`
)

// Look applies the files unless the registry's database has them: later changes by operators stay. It looks
// again when the contents of the files change, and when the database may be an older copy. Of two servers
// with different files the one whose files changed later has its way.
func (f *Files) Look(ctx context.Context) error {
	digest, err := f.read()
	if err != nil {
		return err
	}
	history, err := f.server.store.readHistory(ctx)
	if err != nil || f.looked && digest == f.digest && history == f.history {
		return err
	}
	in, err := schema.ReadFiles(f.paths)
	if err != nil {
		return err
	}
	// they were written meanwhile: the next look reads all of them
	if again, err := f.read(); err != nil || again != digest {
		return err
	}
	var stored []byte
	if err := f.server.store.pool.QueryRow(ctx, selectFilesSQL).Scan(&stored); err != nil {
		return fmt.Errorf("read which files are applied: %w", err)
	}
	if bytes.Equal(stored, digest[:]) {
		err = f.server.store.vouch(ctx, in.Deployments)
	} else {
		err = f.server.applyFiles(ctx, in, digest[:])
	}
	if err == nil {
		f.looked, f.digest, f.history, f.failed = true, digest, history, ""
	}
	return err
}

// read returns the digest of the names and contents of all files.
func (f *Files) read() (digest [sha256.Size]byte, err error) {
	paths, err := schema.FilesOf(f.paths)
	if err != nil {
		return digest, err
	}
	h := sha256.New()
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err != nil {
			return digest, err
		}
		_, _ = fmt.Fprintf(h, "%q %d\n%s", filepath.Base(path), len(content), content)
	}
	return [sha256.Size]byte(h.Sum(nil)), nil
}

// applyFiles is Apply for the server itself. Who may write its files may do all that an operator may.
func (s *Server) applyFiles(ctx context.Context, in *schema.File, digest []byte) error {
	itself := identity.Caller{Identity: identity.Identity{Role: identity.RoleRegistry}, Proof: "files of the registry"}
	ctx = requestid.WithID(identity.NewCallerContext(ctx, itself), uuid.Must(uuid.NewV7()))
	by, err := s.author(ctx, "Apply", "")
	if err != nil {
		return err
	}
	edit := applied(&schema.Environment{
		Regions: in.Regions, Services: in.Services, Deployments: in.Deployments,
		Rights: in.Rights,
	})
	_, err = s.store.change(ctx, change{by: by, vouches: in.Deployments, edit: func(after *schema.Environment) error {
		if err := edit(after); err != nil {
			return err
		}
		return in.Rights.CheckKinds(after.Services)
	}})
	if err == nil {
		err = s.store.vouch(ctx, in.Deployments)
	}
	if err == nil {
		_, err = s.store.pool.Exec(ctx, storeFilesSQL, digest)
	}
	return err
}
