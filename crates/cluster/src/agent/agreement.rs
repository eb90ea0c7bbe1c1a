//! Which version of the protocol the cluster speaks: the first server writes its own down, and a server of another version stays away.
//! What such a one understood of the other values would be wrong, and what it wrote nobody could read.

use super::{Absence, Agent, Purpose};
use crate::bootstrap::create;
use leeward_format::cluster::{ClusterPath, encode_value};
use leeward_format::frame::PROTOCOL_VERSION;

impl Agent {
    /// Whether this server and the cluster speak the same; writes down what this one does where nobody has.
    pub(super) fn agree(&mut self) -> bool {
        let path = ClusterPath::Protocol;
        if self.view.protocol().is_none() && self.view.version_of(&path).is_none() && self.is_free(&path) {
            self.submit(path.clone(), create(path, encode_value(&PROTOCOL_VERSION), false), Purpose::Plain);
        }
        self.view.protocol() == Some(PROTOCOL_VERSION)
    }

    /// What keeps this server from being part of the cluster, if they do not speak the same.
    pub(super) fn disagrees(&self) -> Option<Absence> {
        let found = self.view.protocol().filter(|found| *found != PROTOCOL_VERSION)?;
        Some(Absence::OtherProtocol { found, own: PROTOCOL_VERSION })
    }
}

#[cfg(test)]
#[path = "agreement_tests.rs"]
mod tests;
