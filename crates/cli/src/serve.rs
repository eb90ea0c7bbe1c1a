//! `leeward serve`: one node, until a signal or the end of its supervisor stops it. SIGTERM stops it in order: first the
//! other nodes take over its primary roles and continue without it. A second signal, Ctrl-C or the end of the supervisor
//! stops it at once, which loses nothing either. SIGHUP does nothing.

use crate::Outcome;
use crate::args::ServeArgs;
use crate::signals::{self, Event};
use leeward_server::NodeConfig;
use std::time::Duration;

/// How long a node that stops waits until the other nodes have taken over its primary roles.
const DEPARTURE: Duration = Duration::from_secs(10);
/// Pause between two checks of that.
const LOOK: Duration = Duration::from_millis(20);

pub(crate) fn run(args: &ServeArgs) -> Outcome {
    let mut settings = args.settings.clone();
    settings.extend(args.coordinator.iter().map(|address| ("coordinator".into(), address.clone())));
    if args.insecure_listen {
        settings.push(("insecure_listen".into(), "true".into()));
    }
    signals::survive_hangup()?;
    // A device that fails under a mapped log is an error of that volume. It must not end the process.
    leeward_platform::disk::catch_bus_errors()?;
    let config = NodeConfig::load(args.config.as_deref(), &settings)?;
    let directory = std::path::absolute(config.data_dir())?;
    tracing::info!(server = config.identity.server_id, data_dir = %directory.display(), "starting");
    let events = signals::listen(args.stop_with_stdin)?;
    let server = leeward_server::start(&config)?;
    loop {
        match events.recv()? {
            Event::Child => {}
            Event::Stop => break,
            Event::Depart => {
                tracing::info!("stopping: the other nodes take over first");
                server.begin_to_depart(DEPARTURE);
                // A second signal ends the wait.
                while !server.has_ended() && events.recv_timeout(LOOK).is_err() {}
                break;
            }
        }
    }
    tracing::info!("stopping");
    server.stop();
    Ok(true)
}
