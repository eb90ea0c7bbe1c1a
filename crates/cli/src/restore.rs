//! `leeward restore-coordinator`: each node adds to the coordinator's tree what it knows. Then each confirms that the tree is
//! complete, if it refuses it still, or a region waits for that.

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
    for address in &addresses {
        ask(&access, address, true)?;
    }
    println!("the coordinator is restored; see `leeward status` for nodes that know still more");
    Ok(true)
}

fn ask(access: &Access, address: &str, confirms: bool) -> Result<(), String> {
    let left = if confirms { "not all nodes have confirmed" } else { "nothing is confirmed yet" };
    match access.ask_node(address, "leeward-cli", Op::RestoreTree { confirms }, TIMEOUT) {
        Ok(OpResult::Done) => Ok(()),
        Ok(OpResult::Error(error)) => Err(format!("{address}: {error}; {left}")),
        Ok(other) => Err(format!("{address} answers {other:?}")),
        Err(error) => Err(format!("{address}: {error}; {left}")),
    }
}
