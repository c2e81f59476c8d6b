package cli

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// How a change of a setting reaches a process that runs.
const (
	// OnSignal settings are read again from the configuration file after SIGHUP.
	OnSignal = "SIGHUP"
	// Followed settings name files that the process reads again when they change.
	Followed = "followed"

	onRestart = "restart"
	reloadKey = "reload" // the annotation of flags
	logLevel  = "log-level"
)

// Reloadable records how changes of flags reach a process that runs; changes of its other flags need a
// restart.
func Reloadable(f *pflag.FlagSet, how string, names ...string) {
	for _, name := range names {
		setAnnotation(f.Lookup(name), reloadKey, how)
	}
}

// reloads reports whether a command is a process that reads settings again.
func reloads(of *cobra.Command) (yes bool) {
	of.Flags().VisitAll(func(f *pflag.Flag) { yes = yes || len(f.Annotations[reloadKey]) > 0 })
	return yes
}

// ReloadOf returns how a change of a flag of a process reaches it while it runs: OnSignal, Followed or
// "restart".
func ReloadOf(f *pflag.Flag) string {
	switch how := f.Annotations[reloadKey]; {
	case len(how) > 0:
		return how[0]
	case f.Name == logLevel:
		return OnSignal
	}
	return onRestart
}

// Again adds the flags of a command, bound to a configuration of their own, and returns two functions: one
// checks this configuration, the other applies it.
type Again func(f *pflag.FlagSet) (check func() error, apply func())

// reload reads the settings of a process again.
type reload struct {
	cmd     *cobra.Command
	level   zap.AtomicLevel
	log     *zap.Logger
	again   Again
	running map[string]string // the values of the flags that the process works with
}

// FollowReloads reads the settings of a process again after each SIGHUP, until ctx ends: from the
// configuration file, since the command line and the environment cannot change. A setting that cannot be
// reloaded stays as it is; when one setting is wrong, all stay. The log has one line about each signal.
func FollowReloads(ctx context.Context, cmd *cobra.Command, level zap.AtomicLevel, log *zap.Logger, again Again) {
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	defer signal.Stop(hangup)
	for r := newReload(cmd, level, log, again); ; {
		select {
		case <-ctx.Done():
			return
		case <-hangup:
			r.read()
		}
	}
}

func newReload(cmd *cobra.Command, level zap.AtomicLevel, log *zap.Logger, again Again) *reload {
	r := &reload{cmd: cmd, level: level, log: log, again: again, running: map[string]string{}}
	cmd.Flags().VisitAll(func(f *pflag.Flag) { r.running[f.Name] = f.Value.String() })
	return r
}

func (r *reload) read() {
	next := pflag.NewFlagSet(r.cmd.Name(), pflag.ContinueOnError)
	check, apply := r.again(next)
	level, err := r.fill(next)
	if err == nil {
		err = check()
	}
	if err != nil {
		r.log.Warn("the configuration could not be read again, all settings stay", zap.Error(err))
		return
	}
	changed, restart := r.compare(next)
	apply()
	was := r.level.Level()
	r.level.SetLevel(min(was, level)) // so that the line is written
	r.say(changed, restart)
	r.level.SetLevel(level)
}

// fill sets flags as a process would that started now with the same command line and environment.
func (r *reload) fill(next *pflag.FlagSet) (level zapcore.Level, wrong error) {
	settings, err := fileSettings(r.cmd)
	if err != nil {
		return level, err
	}
	given, err := environmentSettings(r.cmd)
	if err != nil {
		return level, err
	}
	maps.Copy(settings, given)
	r.cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if next.Lookup(f.Name) == nil { // a flag of every command
			next.String(f.Name, f.DefValue, f.Usage)
		}
		value := settings[f.Name].value
		if originOf(f) == "flag" {
			value = f.Value.String()
		}
		if value == nil || wrong != nil {
			return
		}
		if err := setFlag(next.Lookup(f.Name), value); err != nil {
			wrong = fmt.Errorf("%s: %w", settings[f.Name].origin, err)
		}
	})
	if wrong == nil {
		wrong = readSecrets(next)
	}
	if wrong != nil {
		return level, wrong
	}
	if level, err = zapcore.ParseLevel(next.Lookup(logLevel).Value.String()); err != nil {
		return level, fmt.Errorf("%s: %w", logLevel, err)
	}
	return level, nil
}

// compare returns the settings that change now, with both values, and those whose new value needs a restart.
func (r *reload) compare(next *pflag.FlagSet) (changed map[string]string, restart []string) {
	changed = map[string]string{}
	next.VisitAll(func(f *pflag.Flag) {
		was, is := r.running[f.Name], f.Value.String()
		_, secret := f.Annotations[secretKey]
		switch {
		case IsHelp(f.Name), was == is || secret && withoutPassword(was) == withoutPassword(is):
			// new connections read the file of a password
		case ReloadOf(f) == OnSignal:
			changed[f.Name], r.running[f.Name] = was+" → "+is, is
		default:
			restart = append(restart, f.Name)
		}
	})
	return changed, restart
}

func (r *reload) say(changed map[string]string, restart []string) {
	switch {
	case len(changed) == 0 && len(restart) == 0:
		r.log.Info("the configuration is read again, and no setting has changed")
	case len(restart) == 0:
		r.log.Info("the configuration is read again", zap.Any("changed", changed))
	default:
		slices.Sort(restart)
		r.log.Warn("the configuration is read again, and some of it needs a restart", zap.Any("changed", changed),
			zap.Strings("needs_restart", restart))
	}
}
