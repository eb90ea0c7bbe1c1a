//! `leeward serve`: one node, until a signal or its supervisor's end stops it. SIGTERM does so in order: the others take its offices
//! over and go on without it first. A second signal, Ctrl-C or the supervisor's end stop it at once, which loses nothing either.

use crate::Outcome;
use crate::args::ServeArgs;
use crate::signals::{self, Event};
use leeward_server::NodeConfig;
use std::time::Duration;

/// How long a node that is asked to stop waits for the others to take over what it has.
const DEPARTURE: Duration = Duration::from_secs(10);
/// How often it looks whether they have.
const LOOK: Duration = Duration::from_millis(20);

pub(crate) fn run(args: &ServeArgs) -> Outcome {
    let mut settings = args.settings.clone();
    settings.extend(args.coordinator.iter().map(|address| ("coordinator".into(), address.clone())));
    if args.insecure_listen {
        settings.push(("insecure_listen".into(), "true".into()));
    }
    // A device that fails under a mapped log is an error of that volume, and not the end of the process.
    leeward_platform::disk::catch_bus_errors()?;
    let config = NodeConfig::load(args.config.as_deref(), &settings)?;
    let events = signals::listen(args.stop_with_stdin)?;
    let server = leeward_server::start(&config)?;
    loop {
        match events.recv()? {
            Event::Child => {}
            Event::Stop => break,
            Event::Depart => {
                tracing::info!("stopping: the others take over first");
                server.begin_to_depart(DEPARTURE);
                // A second signal ends the patience.
                while !server.has_ended() && events.recv_timeout(LOOK).is_err() {}
                break;
            }
        }
    }
    tracing::info!("stopping");
    server.stop();
    Ok(true)
}
