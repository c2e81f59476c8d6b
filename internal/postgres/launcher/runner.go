package launcher

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	// oldestMajor is the oldest PostgreSQL that the tests run on.
	oldestMajor = 15
	// fallbackImage is the image of a server where only a container engine is available.
	fallbackImage = "postgres:17-alpine"
	fallbackMajor = 17
	// imageData is the data folder inside containers of the fallback image.
	imageData = "/var/lib/postgresql/data"
	// unixPathLimit is the shortest limit for a socket's path (macOS: 104 bytes
	// with the closing zero).
	unixPathLimit = 103
)

// serverRunner is one way to run a server.
type serverRunner interface {
	// source describes the runner in one phrase.
	source() string
	// account is the account that the server has to run as; nil: as ourselves.
	account() *serverAccount
	// prepare makes everything ready that command needs, once per folder.
	prepare(ctx context.Context, f *serverFolder) error
	// command is the server in the foreground, reachable at the port of
	// 127.0.0.1 by the superuser with the folder's password.
	command(f *serverFolder, port int, settings map[string]string) *exec.Cmd
}

// serverAccount is a user that a server runs as in place of root.
type serverAccount struct {
	name     string
	uid, gid uint32
}

// findRunner looks for the best way to run a server on this machine. A folder
// that holds data already accepts nothing but the major version that wrote it.
func findRunner(ctx context.Context, dir string) (serverRunner, error) {
	wanted := dataVersion(dir)
	if binaries, version := findBinaries(ctx, wanted); binaries != "" {
		runsAs, err := chooseAccount(os.Geteuid(), user.Lookup)
		if err != nil {
			return nil, err
		}
		return &binaryServer{dir: binaries, version: version, runsAs: runsAs}, nil
	}
	if wanted != 0 && wanted != fallbackMajor {
		return nil, fmt.Errorf("the data in %s needs PostgreSQL %d, which is not on this machine: %s",
			dir, wanted, installAdvice())
	}
	if engineAnswers(ctx) {
		return &containerServer{image: fallbackImage}, nil
	}
	return nil, fmt.Errorf("there are neither PostgreSQL binaries (%d or newer) nor a container engine: %s",
		oldestMajor, installAdvice())
}

// Binaries returns the folder of the programs that Start takes on this machine; empty when there is none.
func Binaries(ctx context.Context) string {
	dir, _ := findBinaries(ctx, 0)
	return dir
}

// findBinaries returns the first folder with programs that are new enough, or of the wanted major version.
func findBinaries(ctx context.Context, wanted int) (string, postgresVersion) {
	for _, candidate := range binaryFolders("/") {
		version, err := binaryVersion(ctx, candidate)
		if err == nil && version.major >= oldestMajor && (wanted == 0 || version.major == wanted) {
			return candidate, version
		}
	}
	return "", postgresVersion{}
}

// binaryFolders lists the folders below root that may hold the server's
// binaries, in the order to try them.
func binaryFolders(root string) []string {
	var folders []string
	if path, err := exec.LookPath("postgres"); err == nil {
		// Often a link; the other binaries are in the folder of its target.
		if resolved, err := filepath.EvalSymlinks(path); err == nil {
			path = resolved
		}
		folders = append(folders, filepath.Dir(path))
	}
	for _, pattern := range []string{
		"usr/lib/postgresql/*/bin", // Debian
		"usr/pgsql-*/bin",          // Fedora, packages of the PostgreSQL project
		"opt/homebrew/opt/postgresql*/bin",
		"usr/local/opt/postgresql*/bin",
		"Applications/Postgres.app/Contents/Versions/*/bin",
	} {
		found, _ := filepath.Glob(filepath.Join(root, pattern)) // the patterns are well-formed
		slices.SortFunc(found, func(a, b string) int { return pathVersion(b) - pathVersion(a) })
		folders = append(folders, found...)
	}
	return slices.DeleteFunc(folders, func(dir string) bool { return !holdsBinaries(dir) })
}

func holdsBinaries(dir string) bool {
	for _, name := range []string{"postgres", "initdb"} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode()&0o111 == 0 {
			return false
		}
	}
	return true
}

var lastNumber = regexp.MustCompile(`.*\D(\d+)`)

// pathVersion is the version in a folder's path, and 0 when there is none.
func pathVersion(path string) int {
	if match := lastNumber.FindStringSubmatch(path); match != nil {
		number, _ := strconv.Atoi(match[1])
		return number
	}
	return 0
}

// postgresVersion is a version as "postgres --version" prints it.
type postgresVersion struct {
	major int
	text  string
}

var versionPattern = regexp.MustCompile(`\(PostgreSQL\) ((\d+)\S*)`)

func binaryVersion(ctx context.Context, dir string) (postgresVersion, error) {
	out, err := exec.CommandContext(ctx, filepath.Join(dir, "postgres"), "--version").Output()
	if err != nil {
		return postgresVersion{}, fmt.Errorf("ask %s for its version: %w", dir, err)
	}
	match := versionPattern.FindSubmatch(out)
	if match == nil {
		return postgresVersion{}, fmt.Errorf("no version in %q", out)
	}
	major, err := strconv.Atoi(string(match[2]))
	return postgresVersion{major: major, text: string(match[1])}, err
}

// dataVersion is the major version of the data in dir, and 0 when there is none.
func dataVersion(dir string) int {
	if dir == "" {
		return 0
	}
	text, err := os.ReadFile(filepath.Join(dir, dataName, "PG_VERSION"))
	if err != nil {
		return 0
	}
	major, _ := strconv.Atoi(strings.TrimSpace(string(text)))
	return major
}

// chooseAccount returns the account to run the server as. PostgreSQL refuses root.
func chooseAccount(uid int, lookup func(string) (*user.User, error)) (*serverAccount, error) {
	if uid != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		found, err := lookup(name)
		if err != nil {
			continue
		}
		id, err := strconv.ParseUint(found.Uid, 10, 32)
		if err != nil || id == 0 {
			continue
		}
		group, err := strconv.ParseUint(found.Gid, 10, 32)
		if err != nil {
			continue
		}
		return &serverAccount{name: name, uid: uint32(id), gid: uint32(group)}, nil
	}
	return nil, errors.New(
		"postgresql refuses to run as root and there is neither a user postgres nor nobody: run this as another user")
}

// installAdvice returns the advice how to install the binaries on this machine.
func installAdvice() string {
	release, _ := os.ReadFile("/etc/os-release")
	return "install the PostgreSQL server with: " + installCommand(runtime.GOOS, string(release), os.Geteuid() == 0)
}

var releaseFamily = regexp.MustCompile(`(?m)^ID(?:_LIKE)?="?([^"\n]*)`)

// installCommand is the command that installs the server's binaries, for an
// operating system and the content of its /etc/os-release.
func installCommand(goos, release string, root bool) string {
	if goos == "darwin" {
		return "brew install postgresql@17"
	}
	var families []string
	for _, match := range releaseFamily.FindAllStringSubmatch(release, -1) {
		families = append(families, strings.Fields(match[1])...)
	}
	sudo := "sudo "
	if root {
		sudo = ""
	}
	switch {
	case slices.Contains(families, "debian") || slices.Contains(families, "ubuntu"):
		return sudo + "apt-get install -y postgresql"
	case slices.Contains(families, "fedora") || slices.Contains(families, "rhel"):
		return sudo + "dnf install postgresql-server"
	}
	return "the package manager of this system (the PostgreSQL server package)"
}

// binaryServer runs a server from the binaries in a folder.
type binaryServer struct {
	dir     string
	version postgresVersion
	runsAs  *serverAccount
}

func (b *binaryServer) source() string {
	return fmt.Sprintf("PostgreSQL %s binaries in %s", b.version.text, b.dir)
}

func (b *binaryServer) account() *serverAccount { return b.runsAs }

// prepare creates the cluster. It does so under another name first, so that an
// interrupted attempt is never taken for a cluster.
func (b *binaryServer) prepare(ctx context.Context, f *serverFolder) error {
	if dataVersion(f.path) != 0 {
		return nil
	}
	unfinished := f.join(dataName + ".unfinished")
	if err := os.RemoveAll(unfinished); err != nil {
		return fmt.Errorf("remove an unfinished cluster: %w", err)
	}
	arguments := []string{
		"--pgdata", unfinished, "--username", superuser, "--pwfile", f.join(passwordName),
		"--auth-local", "trust", "--auth-host", "scram-sha-256",
		// The same order of text on every machine.
		"--encoding", "UTF8", "--no-locale",
	}
	if f.temporary {
		// The folder is not used after a crash of the machine.
		arguments = append(arguments, "--no-sync")
	}
	initdb := exec.CommandContext(ctx, filepath.Join(b.dir, "initdb"), arguments...)
	initdb.Dir = f.path
	initdb.Env = serverEnvironment()
	initdb.SysProcAttr = inOwnSession(b.runsAs)
	if out, err := initdb.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w: %s", err, bytes.TrimSpace(out))
	}
	return os.Rename(unfinished, f.join(dataName))
}

func (b *binaryServer) command(f *serverFolder, port int, settings map[string]string) *exec.Cmd {
	arguments := append([]string{"-D", f.join(dataName)}, settingArguments(settings)...)
	arguments = append(arguments,
		"-c", "listen_addresses=127.0.0.1",
		"-c", "port="+strconv.Itoa(port),
		"-c", "unix_socket_directories="+socketFolder(f.path),
	)
	command := exec.Command(filepath.Join(b.dir, "postgres"), arguments...)
	command.Dir = f.path
	command.Env = serverEnvironment()
	command.SysProcAttr = boundToUs(b.runsAs)
	return command
}

// socketFolder is where the unix socket goes. It asks for no password, thus it
// has to be in a folder that only the server's user can enter. It is a
// convenience for psql and left out where its path would be too long.
func socketFolder(folder string) string {
	if len(filepath.Join(folder, ".s.PGSQL.65535")) > unixPathLimit {
		return ""
	}
	return folder
}

// serverEnvironment is our environment without variables that configure the server (PGPORT, PGDATA and the
// like) or translate its messages.
func serverEnvironment() []string {
	environment := slices.DeleteFunc(os.Environ(), func(entry string) bool {
		return strings.HasPrefix(entry, "PG") || strings.HasPrefix(entry, "LC_") || strings.HasPrefix(entry, "LANG")
	})
	return append(environment, "LC_ALL=C")
}

// containerServer runs a server in a container, by means of the docker command: that
// process stays in the foreground and passes its signals on, so it starts and
// ends like the server itself.
type containerServer struct {
	image string
}

// engineAnswers reports whether the docker command reaches an engine.
func engineAnswers(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	return exec.CommandContext(ctx, "docker", "version").Run() == nil
}

func (c *containerServer) source() string { return "container image " + c.image }

func (c *containerServer) account() *serverAccount { return nil }

func (c *containerServer) prepare(ctx context.Context, _ *serverFolder) error {
	if exec.CommandContext(ctx, "docker", "image", "inspect", c.image).Run() == nil {
		return nil
	}
	if out, err := exec.CommandContext(ctx, "docker", "pull", "--quiet", c.image).CombinedOutput(); err != nil {
		return fmt.Errorf("pull the image: %w: %s; or %s", err, bytes.TrimSpace(out), installAdvice())
	}
	return nil
}

func (c *containerServer) command(f *serverFolder, port int, settings map[string]string) *exec.Cmd {
	arguments := []string{
		"run", "--rm",
		"--publish", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) + ":5432",
		// Without a value docker takes it from its environment, where other
		// users do not see it.
		"--env", "POSTGRES_PASSWORD",
		"--env", "POSTGRES_INITDB_ARGS=--encoding=UTF8 --no-locale",
		"--env", "PGDATA=" + imageData,
	}
	if !f.temporary {
		arguments = append(arguments, "--volume", f.join(dataName)+":"+imageData)
	}
	arguments = append(arguments, c.image, "postgres")
	command := exec.Command("docker", append(arguments, settingArguments(settings)...)...)
	command.Env = append(os.Environ(), "POSTGRES_PASSWORD="+f.password)
	command.SysProcAttr = boundToUs(nil)
	return command
}
