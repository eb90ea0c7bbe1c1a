//! Which version of the protocol the cluster speaks: the first server writes its own down, and a server of another version stays away.
//! What such a one understood of the other values would be wrong, and what it wrote nobody could read.

use super::{Agent, Purpose};
use crate::bootstrap::create;
use leeward_format::cluster::{ClusterPath, encode_value};
use leeward_format::frame::PROTOCOL_VERSION;

impl Agent {
    /// Whether this server and the cluster speak the same; writes down what this one does where nobody has.
    pub(super) fn agree(&mut self) -> bool {
        let path = ClusterPath::Protocol;
        if self.view.lacks(&path) && self.is_free(&path) {
            self.submit(path.clone(), create(path, encode_value(&PROTOCOL_VERSION), false), Purpose::Plain);
        }
        self.view.protocol() == Some(PROTOCOL_VERSION)
    }

    /// What the cluster speaks, if this server speaks another.
    pub(super) fn other_protocol(&self) -> Option<u8> {
        self.view.protocol().filter(|found| *found != PROTOCOL_VERSION)
    }
}

#[cfg(test)]
#[path = "agreement_tests.rs"]
mod tests;
