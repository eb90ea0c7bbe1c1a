//! Events from outside the process: signals, and the end of the standard input. Each source has a thread that only waits and
//! sends. And signals that must not end the process.

use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::flag;
use signal_hook::iterator::Signals;
use std::io::{self, Read};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, atomic::AtomicBool};
use std::thread;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// Ctrl-C, or the supervisor is gone: stop at once.
    Stop,
    /// SIGTERM: stop in order.
    Depart,
    /// A child process may have ended.
    Child,
}

impl Event {
    /// Whether this process must end because of the event.
    pub(crate) fn ends(self) -> bool {
        self != Event::Child
    }
}

/// Starts to listen. `stdin`: the end of the standard input means [`Event::Stop`].
///
/// # Errors
/// The system refuses to install handlers.
pub(crate) fn listen(stdin: bool) -> io::Result<Receiver<Event>> {
    let (sender, receiver) = channel();
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGCHLD])?;
    let by_signal = sender.clone();
    thread::Builder::new().name("signals".into()).spawn(move || {
        for signal in signals.forever() {
            let event = match signal {
                SIGCHLD => Event::Child,
                SIGTERM => Event::Depart,
                _ => Event::Stop,
            };
            if by_signal.send(event).is_err() {
                return;
            }
        }
    })?;
    if stdin {
        thread::Builder::new().name("supervisor-watch".into()).spawn(move || wait_for_end(&sender))?;
    }
    Ok(receiver)
}

/// From now on a write beyond the limit on the size of files (`ulimit -f`) is an error of that write, and no signal that
/// ends the process. By a handler, because a signal that is ignored would be so in the programs that this one starts.
///
/// # Errors
/// The system refuses to install a handler.
pub(crate) fn survive_file_size_limit() -> io::Result<()> {
    flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false))).map(drop)
}

/// From now on SIGHUP does nothing: a node outlives the terminal that it was started from, and has nothing that it could
/// read again.
///
/// # Errors
/// The system refuses to install a handler.
pub(crate) fn survive_hangup() -> io::Result<()> {
    flag::register(SIGHUP, Arc::new(AtomicBool::new(false))).map(drop)
}

fn wait_for_end(sender: &Sender<Event>) {
    let mut ignored = [0; 64];
    let mut stdin = io::stdin();
    loop {
        match stdin.read(&mut ignored) {
            Ok(1..) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Ok(0) | Err(_) => break,
        }
    }
    // The receiver is gone only when the process ends anyway.
    let _ = sender.send(Event::Stop);
}
