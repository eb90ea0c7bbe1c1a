//! Events from outside the process: signals, and the end of the standard input. Each source has a thread that only waits and
//! sends.

use signal_hook::consts::{SIGCHLD, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io::{self, Read};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

/// An event.
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
