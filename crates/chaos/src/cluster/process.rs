//! A process of the cluster. It is started, killed and stopped, and its output is kept. Belongs to one thread.

use crate::error::{ChaosError, fault};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Lines of its log that are shown when a process dies by itself.
const SHOWN_LINES: usize = 8;
/// How long a process may take to end after SIGTERM.
const LEAVES_WITHIN: Duration = Duration::from_secs(20);
/// Pause between checks.
const LOOK: Duration = Duration::from_millis(20);

/// A process of the cluster, and its output. It is killed when it is dropped.
#[derive(Debug)]
pub(crate) struct Process {
    name: String,
    log: PathBuf,
    child: Option<Child>,
    is_stopped: bool,
    /// When it was sent SIGTERM, if it was.
    leaving: Option<Instant>,
}

impl Process {
    /// A process that does not run yet. It will log to a file of its name in `logs`.
    pub(crate) fn new(name: String, logs: &Path) -> Process {
        let log = logs.join(&name);
        Process { name, log, child: None, is_stopped: false, leaving: None }
    }

    /// Starts it in a process group of its own, so that a Ctrl-C reaches the run alone. Its standard input ends with this
    /// process.
    ///
    /// # Errors
    /// The program cannot be run.
    pub(crate) fn start(&mut self, mut command: Command) -> Result<(), ChaosError> {
        assert!(self.child.is_none(), "it runs already");
        let log = File::options().create(true).append(true).open(&self.log).map_err(fault("open", &self.log))?;
        let copy = log.try_clone().map_err(fault("open", &self.log))?;
        let child = command.stdin(Stdio::piped()).stdout(copy).stderr(log).process_group(0).spawn();
        let what = || format!("cannot run {}", command.get_program().display());
        self.child = Some(child.map_err(|source| ChaosError::Io { what: what(), source })?);
        Ok(())
    }

    pub(crate) fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    pub(crate) fn runs(&self) -> bool {
        self.child.is_some()
    }

    /// Its peak resident memory, in bytes.
    pub(crate) fn most_resident(&self) -> Option<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid()?)).ok()?;
        let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
        Some(most.trim().strip_suffix(" kB")?.parse::<u64>().ok()? * 1024)
    }

    /// `kill -9`, and waits until it is gone.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // A process that has just ended by itself is gone as well.
            drop(child.kill());
            drop(child.wait());
        }
        (self.is_stopped, self.leaving) = (false, None);
    }

    /// Sends SIGTERM. The process ends after it has handed over its regions.
    pub(crate) fn terminate(&mut self) {
        self.leaving = self.signal(Signal::TERM).then(Instant::now);
    }

    /// Waits for the end of a process that was sent SIGTERM. Kills it if that takes too long.
    pub(crate) fn end_leaving(&mut self) {
        while let Some(since) = self.leaving {
            if self.has_left() || since.elapsed() > LEAVES_WITHIN {
                self.kill();
            } else {
                thread::sleep(LOOK);
            }
        }
    }

    /// Whether it was sent SIGTERM and has ended with success.
    fn has_left(&mut self) -> bool {
        let status = self.child.as_mut().and_then(|child| child.try_wait().ok()?);
        self.leaving.is_some() && status.is_some_and(|status| status.success())
    }

    /// SIGSTOP.
    pub(crate) fn stop(&mut self) {
        self.is_stopped = self.signal(Signal::STOP);
    }

    /// SIGCONT, if it was stopped.
    pub(crate) fn resume(&mut self) {
        if self.is_stopped {
            self.signal(Signal::CONT);
            self.is_stopped = false;
        }
    }

    fn signal(&self, signal: Signal) -> bool {
        let pid = self.pid().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
        pid.is_some_and(|pid| kill_process(pid, signal).is_ok())
    }

    /// How it ended, and the end of its log, if it has ended by itself since the last call.
    pub(crate) fn death(&mut self) -> Option<String> {
        if self.has_left() {
            return None;
        }
        let status = self.child.as_mut()?.try_wait().ok()??;
        (self.child, self.leaving) = (None, None);
        let how = match (status.signal(), status.code()) {
            (Some(signal), _) => format!("was killed by signal {signal}"),
            (None, code) => format!("ended with exit code {}", code.unwrap_or_default()),
        };
        let log = fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&log).into_owned();
        let lines: Vec<&str> = text.lines().collect();
        let tail = lines[lines.len().saturating_sub(SHOWN_LINES)..].join("\n    ");
        Some(format!("{} {how} by itself; the end of its log:\n    {tail}", self.name))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}
