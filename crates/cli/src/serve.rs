//! `leeward serve`: one node, until a signal or its supervisor's end stops it.

use crate::Outcome;
use crate::args::ServeArgs;
use crate::signals::{self, Event};
use leeward_server::NodeConfig;

pub(crate) fn run(args: &ServeArgs) -> Outcome {
    let mut settings = args.settings.clone();
    settings.extend(args.coordinator.iter().map(|address| ("coordinator".into(), address.clone())));
    if args.insecure_listen {
        settings.push(("insecure_listen".into(), "true".into()));
    }
    let config = NodeConfig::load(args.config.as_deref(), &settings)?;
    let events = signals::listen(args.stop_with_stdin)?;
    let server = leeward_server::start(&config)?;
    while events.recv()? != Event::Stop {}
    tracing::info!("stopping");
    server.stop();
    Ok(true)
}
