//! `leeward restore-coordinator`: each node adds to the coordinator's tree what it knows, and then one of them confirms.

use crate::Outcome;
use crate::args::RestoreCoordinatorArgs;
use leeward_client::Access;
use leeward_format::op::{Op, OpResult};
use std::time::Duration;

/// A large cluster takes many operations of the coordinator.
const TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) fn restore(args: &RestoreCoordinatorArgs) -> Outcome {
    let addresses = args.connect.addresses();
    let access = Access::of(&addresses)?;
    let mut left: Vec<&String> = addresses.iter().collect();
    while !left.is_empty() {
        let mut refused = Vec::new();
        for address in &left {
            match ask(&access, address, false) {
                Ok(()) => println!("{address}: the coordinator has what this node knows"),
                Err(why) => refused.push((*address, why)),
            }
        }
        if refused.len() == left.len() {
            let reasons: Vec<String> = refused.into_iter().map(|(_, why)| why).collect();
            return Err(reasons.join("\n").into());
        }
        // What the others know may resolve what was in the way.
        left = refused.into_iter().map(|(address, _)| address).collect();
    }
    let first = addresses.first().expect("--connect has at least one address");
    ask(&access, first, true)?;
    println!("the coordinator is restored; see `leeward status` for nodes that know still more");
    Ok(true)
}

fn ask(access: &Access, address: &str, confirms: bool) -> Result<(), String> {
    let answer = access.ask_node(address, "leeward-cli", Op::RestoreTree { confirms }, TIMEOUT);
    match answer.map_err(|error| format!("{address}: {error}; nothing is confirmed yet"))? {
        OpResult::Done => Ok(()),
        OpResult::Error(error) => Err(format!("{address}: {error}; nothing is confirmed yet")),
        other => Err(format!("{address} answers {other:?}")),
    }
}
