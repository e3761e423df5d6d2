//go:build unix

package testenv

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// startTimeout bounds how long a server may take to answer, recovery after a
// crash included.
const startTimeout = time.Minute

// account is whom servers run as: PostgreSQL and PgBouncer refuse root.
type account struct {
	credential *syscall.Credential // nil: as ourselves
	uid, gid   int
}

func unprivileged() (account, error) {
	if os.Getuid() != 0 {
		return account{uid: os.Getuid(), gid: os.Getgid()}, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.Atoi(u.Uid)
		gid, err2 := strconv.Atoi(u.Gid)
		if err := errors.Join(err1, err2); err != nil {
			return account{}, err
		}
		return account{credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, uid: uid, gid: gid}, nil
	}
	return account{}, errors.New("no unprivileged user to run a server as: neither postgres nor nobody exists")
}

// attributes put a process in a group of its own, so that a signal from the
// terminal ends the test and not the server under it.
func (a account) attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Credential: a.credential}
}

// folder is a server's temporary directory. Its watcher, a process that
// notices the end of the test binary, kills what still runs from it and
// removes it. A folder whose watcher was killed too is removed by the next
// test binary: its lock is free.
type folder struct {
	path    string
	account account
	lock    *os.File
	watcher *exec.Cmd
	leash   io.Closer // closing it ends the watch
}

const folderPrefix = "semel-testenv-"

// killFrom is a shell function that kills the process groups named by the
// pid files of a folder, if they still are what they were.
const killFrom = `
kill_from() {
	for f in "$1"/data/postmaster.pid "$1"/pid; do
		[ -f "$f" ] || continue
		pid=$(head -n 1 "$f")
		case $(ps -ww -o args= -p "$pid" 2>/dev/null) in
		*"$1"*) kill -9 -- "-$pid" 2>/dev/null || kill -9 "$pid" ;;
		esac
	done
}
`

func newFolder() (f *folder, err error) {
	a, err := unprivileged()
	if err != nil {
		return nil, err
	}
	removeLeftFolders()
	path, err := os.MkdirTemp("", folderPrefix)
	if err != nil {
		return nil, err
	}
	f = &folder{path: path, account: a}
	defer func() {
		if err != nil {
			_ = os.RemoveAll(path)
		}
	}()
	if f.lock, err = os.OpenFile(filepath.Join(path, "lock"), os.O_CREATE|os.O_RDWR, 0o600); err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, err
	}
	if err := os.Chown(path, a.uid, a.gid); err != nil {
		return nil, err
	}
	f.watcher = exec.Command("/bin/sh", "-c", killFrom+`cat >/dev/null; kill_from "$1"; sleep 0.1; rm -rf "$1"`, "sh", path)
	f.watcher.SysProcAttr = a.attributes()
	f.watcher.Dir = "/"
	if f.leash, err = f.watcher.StdinPipe(); err != nil {
		return nil, err
	}
	return f, f.watcher.Start()
}

// remove kills what runs from the folder and removes it.
func (f *folder) remove() {
	_ = f.leash.Close()
	_ = f.watcher.Wait()
	_ = os.RemoveAll(f.path) // what the watcher could not
	_ = f.lock.Close()
}

func removeLeftFolders() {
	left, err := filepath.Glob(filepath.Join(os.TempDir(), folderPrefix+"*"))
	if err != nil {
		return
	}
	for _, path := range left {
		lock, err := os.OpenFile(filepath.Join(path, "lock"), os.O_RDWR, 0)
		if err != nil {
			continue // being made or being removed, or another user's
		}
		if syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			// Its watcher may be at it as well, which does no harm.
			_ = exec.Command("/bin/sh", "-c", killFrom+`kill_from "$1"`, "sh", path).Run()
			_ = os.RemoveAll(path)
		}
		_ = lock.Close()
	}
}

// command prepares a program to run as the folder's account, in it.
func (f *folder) command(program string, args ...string) *exec.Cmd {
	c := exec.Command(program, args...)
	c.Dir = f.path
	c.SysProcAttr = f.account.attributes()
	c.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + f.path, "TMPDIR=" + f.path, "LC_ALL=C", "TZ=UTC"}
	return c
}

func (f *folder) run(program string, args ...string) error {
	out, err := f.command(program, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w\n%s", filepath.Base(program), err, out)
	}
	return nil
}

// process is a server that runs.
type process struct {
	cmd    *exec.Cmd
	exited chan struct{}
}

// start starts a server whose output goes to the folder's file log.
func (f *folder) start(program string, args ...string) (*process, error) {
	log, err := os.OpenFile(filepath.Join(f.path, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	p := &process{cmd: f.command(program, args...), exited: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = log, log
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() { // ends with the process, which ends with the test binary
		_ = p.cmd.Wait()
		close(p.exited)
	}()
	return p, nil
}

func (p *process) running() bool {
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// await calls ready until it succeeds.
func (f *folder) await(p *process, ready func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
			continue
		case <-p.exited:
		case <-ctx.Done():
		}
		log, _ := os.ReadFile(filepath.Join(f.path, "log"))
		return fmt.Errorf("%s does not answer: %w\n%s", filepath.Base(p.cmd.Path), err, tail(log))
	}
}

// find returns the path of a server program.
func find(name string) (string, error) {
	// The newest first: versions of two digits sort as text.
	versions, _ := filepath.Glob("/usr/lib/postgresql/*/bin/" + name)
	if len(versions) > 0 {
		return versions[len(versions)-1], nil
	}
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	for _, dir := range []string{"/usr/sbin", "/usr/local/sbin", "/opt/homebrew/bin"} {
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s is not installed", name)
}

func findOrInstall(name, debianPackage string) (string, error) {
	path, err := find(name)
	if err == nil {
		return path, nil
	}
	if ierr := install(debianPackage); ierr != nil {
		return "", fmt.Errorf("%w, and could not be installed: %w", err, ierr)
	}
	return find(name)
}

// install installs a Debian package and leaves no service behind, neither
// running nor enabled.
func install(name string) (err error) {
	if _, err := os.Stat("/etc/debian_version"); err != nil || os.Getuid() != 0 {
		return errors.New("not root on Debian")
	}
	lock, err := os.OpenFile(filepath.Join(os.TempDir(), "semel-testenv.install"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = lock.Close() }()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return err
	}

	// Asked by maintainer scripts whether they may start a service: no.
	const policy = "/usr/sbin/policy-rc.d"
	if f, err := os.OpenFile(policy, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755); err == nil {
		_, err = io.WriteString(f, "#!/bin/sh\nexit 101\n")
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.Remove(policy)) }()
	}
	// And no cluster that the machine would start at its next boot.
	const cluster = "/etc/postgresql-common/createcluster.conf"
	if _, err := os.Stat(cluster); errors.Is(err, os.ErrNotExist) {
		if err := os.MkdirAll(filepath.Dir(cluster), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(cluster, []byte("create_main_cluster = false\n"), 0o644); err != nil {
			return err
		}
	}

	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	apt := func(args ...string) error {
		c := exec.CommandContext(ctx, "apt-get", append([]string{"-o", "DPkg::Lock::Timeout=120"}, args...)...)
		c.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C")
		out, err := c.CombinedOutput()
		if err != nil {
			return fmt.Errorf("apt-get %s: %w\n%s", args[0], err, tail(out))
		}
		return nil
	}
	if err := apt("update"); err != nil {
		return err
	}
	if err := apt("install", "-y", "--no-install-recommends", "-o", "Dpkg::Options::=--force-confold", name); err != nil {
		return err
	}
	for _, tool := range []string{"systemctl", "deb-systemd-helper"} {
		if path, err := exec.LookPath(tool); err == nil {
			_ = exec.CommandContext(ctx, path, "disable", name+".service").Run() // there may be none to disable
		}
	}
	return nil
}

// tail returns the end of an output, where what went wrong is told.
func tail(out []byte) []byte { return out[max(0, len(out)-2000):] }

// freeAddr returns a loopback address that nobody listens on.
func freeAddr() (host string, port int, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", 0, err
	}
	addr := l.Addr().(*net.TCPAddr)
	return addr.IP.String(), addr.Port, l.Close()
}

// PostgresServer is a private server.
type PostgresServer struct {
	folder  *folder
	program string
	args    []string
	host    string
	port    int

	mu      sync.Mutex
	process *process
}

func newPostgresServer(o PostgresOptions) (s *PostgresServer, err error) {
	s = &PostgresServer{}
	if s.program, err = findOrInstall("postgres", "postgresql"); err != nil {
		return nil, err
	}
	initdb, err := find("initdb")
	if err != nil {
		return nil, err
	}
	if s.folder, err = newFolder(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			s.remove()
		}
	}()
	data := filepath.Join(s.folder.path, "data")
	if err := s.folder.run(initdb, "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"); err != nil {
		return nil, err
	}
	if s.host, s.port, err = freeAddr(); err != nil {
		return nil, err
	}
	listen := s.host
	for _, n := range o.Networks {
		listen += "," + n.Addr().String()
		if err := appendTo(filepath.Join(data, "pg_hba.conf"), fmt.Sprintf("host all all %v trust\n", n.Masked())); err != nil {
			return nil, err
		}
	}
	parameters := map[string]string{
		"listen_addresses":        listen,
		"port":                    strconv.Itoa(s.port),
		"unix_socket_directories": s.folder.path,
		"max_connections":         "300",
		"fsync":                   "on",
		"shared_buffers":          "64MB",
		// In the folder, which is removed: of a server that is killed, segments
		// elsewhere stay until the machine's next start.
		"dynamic_shared_memory_type": "mmap",
		// Tests come and go; what they leave is not worth a worker's time.
		"autovacuum": "off",
	}
	for k, v := range o.Parameters {
		parameters[k] = v
	}
	s.args = []string{"-D", data}
	for k, v := range parameters {
		s.args = append(s.args, "-c", k+"="+v)
	}
	return s, s.Start()
}

func appendTo(name, text string) error {
	f, err := os.OpenFile(name, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = io.WriteString(f, text)
	return errors.Join(err, f.Close())
}

// Addr is the server's TCP address.
func (s *PostgresServer) Addr() string { return net.JoinHostPort(s.host, strconv.Itoa(s.port)) }

// Socket is the directory of the server's Unix socket.
func (s *PostgresServer) Socket() string { return s.folder.path }

// Log returns what the server has logged.
func (s *PostgresServer) Log() string {
	log, _ := os.ReadFile(filepath.Join(s.folder.path, "log"))
	return string(log)
}

// Start starts the server, unless it runs, and waits until it answers.
func (s *PostgresServer) Start() (err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process != nil && s.process.running() {
		return nil
	}
	// A session that began while the server was killed may outlive it for a
	// moment, and PostgreSQL does not start beside it.
	for end := time.Now().Add(startTimeout); ; {
		logged := len(s.Log())
		if s.process, err = s.folder.start(s.program, s.args...); err != nil {
			return err
		}
		err = s.folder.await(s.process, func(ctx context.Context) error { return psql(ctx, s.URL(), "") })
		if err == nil || s.process.running() || time.Now().After(end) ||
			!strings.Contains(s.Log()[logged:], "pre-existing shared memory block") {
			return err
		}
		<-time.After(100 * time.Millisecond)
	}
}

// Stop stops the server at once, in order: sessions are ended, transactions
// rolled back, and a checkpoint is written.
func (s *PostgresServer) Stop() error { return s.end(false, syscall.SIGINT) }

// Kill kills the server and its sessions in the middle of whatever they do.
// Start recovers what was committed.
func (s *PostgresServer) Kill() error { return s.end(true, syscall.SIGKILL) }

// Restart stops and starts the server.
func (s *PostgresServer) Restart() error { return errors.Join(s.Stop(), s.Start()) }

func (s *PostgresServer) end(group bool, sig syscall.Signal) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process == nil || !s.process.running() {
		return nil
	}
	pid := s.process.cmd.Process.Pid
	if group {
		// Sessions lead groups of their own; they notice the death of their
		// parent, but only once they have nothing else to do: one that waits for
		// a lock inside of the server, of a session that was killed, never does,
		// and no server starts beside it. So the parent is to make no other
		// while they are killed.
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			return err
		}
		killed := map[int]bool{}
		for more := true; more; {
			stopped, all := children(pid)
			more = !stopped // it may be making one yet
			for _, child := range all {
				if !killed[child] {
					killed[child], more = true, true
					_ = syscall.Kill(child, sig)
				}
			}
		}
	}
	if err := syscall.Kill(pid, sig); err != nil {
		return err
	}
	select {
	case <-s.process.exited:
		return nil
	case <-time.After(startTimeout):
		return fmt.Errorf("the server did not end within %v of %v", startTimeout, sig)
	}
}

// children returns the children of a process, and whether it stands still, or is gone.
func children(pid int) (stopped bool, pids []int) {
	out, err := exec.Command("ps", "-A", "-o", "pid=,ppid=,stat=").Output()
	if err != nil {
		return true, nil
	}
	stopped = true
	parent := strconv.Itoa(pid)
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		if len(f) == 3 && f[0] == parent {
			stopped = strings.ContainsAny(f[2][:1], "TZ")
		}
		if len(f) == 3 && f[1] == parent {
			if child, err := strconv.Atoi(f[0]); err == nil {
				pids = append(pids, child)
			}
		}
	}
	return stopped, pids
}

func (s *PostgresServer) remove() {
	_ = s.end(true, syscall.SIGKILL)
	s.folder.remove()
}
