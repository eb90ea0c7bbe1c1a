//! Reads of a key that memory answers at once: [`leeward_region::serving::at_once`].

use crate::node::Node;
use leeward_format::op::{Op, OpResult};
use leeward_platform::Nanos;

impl Node {
    /// The answer to a read of a key, if memory has it and nothing must be waited for. `heard` is a reading of the clock since
    /// the request came.
    pub fn read_at_once(&self, heard: Nanos, table: &str, op: &Op) -> Option<OpResult> {
        // What the coordinator has said may change who serves the region.
        if self.has_heard_coordinator {
            return None;
        }
        let (region, ..) = self.region_of(op, table)?;
        self.machines.get(&region)?.served()?.read_at_once(heard, op)
    }
}
