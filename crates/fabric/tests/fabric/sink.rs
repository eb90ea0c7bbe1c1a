//! A fabric that is dropped while it is used.

use crate::{
    common::{Harness, recorder},
    harness::Tcp,
};
use leeward_fabric::Fabric;
use std::sync::{Arc, Mutex};

/// The last handle of a fabric is dropped inside its own sink. The fabric still ends.
#[test]
fn a_fabric_may_be_dropped_by_its_own_sink() {
    let mut h = Tcp::default();
    let b = h.node(2);
    let held: Arc<Mutex<Option<Arc<dyn Fabric>>>> = Arc::default();
    let (log, record) = recorder();
    let dropped = Arc::clone(&held);
    let a = h.attach(
        1,
        Arc::new(move |peer, event| {
            record(peer, event);
            drop(dropped.lock().unwrap().take());
        }),
    );
    // The sink waits until it has the only handle.
    held.lock().unwrap().insert(a).connect(b.id, &b.fabric.local_address());
    h.until("the sink was called", &mut || !log.lock().unwrap().is_empty());
    h.until("the address is free again", &mut || held.lock().unwrap().is_none());
    let again = h.node(1);
    again.fabric.connect(b.id, &b.fabric.local_address());
    h.until("a new fabric takes its place", &mut || again.ups(&b) == 1);
}
