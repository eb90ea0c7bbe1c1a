//! The test harness of a transport: nodes that record their events, and a way to let time pass.

use leeward_fabric::{Descriptor, Fabric, LinkEvent, LinkOptions, Memory, PeerId, Sink};
use std::{
    sync::{Arc, Condvar, Mutex},
    thread,
    time::{Duration, Instant},
};

/// Cases as tests of one transport, each of which may be skipped there.
macro_rules! tests_of {
    ($transport:ident, $harness:ty; $($case:ident),*) => {
        mod $transport {
            $(#[test] fn $case() {
                if let Some(mut harness) = <$harness as crate::common::Harness>::ready() {
                    super::$case(&mut harness);
                }
            })*
        }
    };
}

/// The longest a test waits for something that should happen.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);

/// Events in the order they were delivered.
pub(crate) type Log = Arc<Mutex<Vec<(PeerId, LinkEvent)>>>;

/// A node and its events.
pub(crate) struct Node {
    pub(crate) id: PeerId,
    pub(crate) fabric: Arc<dyn Fabric>,
    pub(crate) log: Log,
}

impl Node {
    /// How often `event` came from `peer`.
    pub(crate) fn count(&self, peer: &Node, event: &LinkEvent) -> usize {
        self.log.lock().unwrap().iter().filter(|(from, found)| *from == peer.id && found == event).count()
    }
    /// How often the link to `peer` came up.
    pub(crate) fn ups(&self, peer: &Node) -> usize {
        self.count(peer, &LinkEvent::Up)
    }
    /// How often the link to `peer` went down.
    pub(crate) fn downs(&self, peer: &Node) -> usize {
        self.count(peer, &LinkEvent::Down)
    }
    /// Whether operation `op` on `peer` was completed.
    pub(crate) fn completed(&self, peer: &Node, op: u64) -> bool {
        self.count(peer, &LinkEvent::Completed { op }) == 1
    }
    /// The control messages from `peer`.
    pub(crate) fn messages(&self, peer: &Node) -> Vec<Vec<u8>> {
        let log = self.log.lock().unwrap();
        log.iter()
            .filter_map(|(from, event)| match event {
                LinkEvent::Message(message) if *from == peer.id => Some(message.clone()),
                _ => None,
            })
            .collect()
    }
    /// The outcome of operation `op`.
    pub(crate) fn outcome(&self, op: u64) -> Option<LinkEvent> {
        let log = self.log.lock().unwrap();
        let mut found = log.iter().map(|(_, event)| event).filter(|event| match event {
            LinkEvent::Completed { op: of } | LinkEvent::Refused { op: of } | LinkEvent::ReadDone { op: of, .. } => {
                *of == op
            }
            _ => false,
        });
        let outcome = found.next().cloned();
        assert!(found.next().is_none(), "operation {op} ended twice");
        outcome
    }
    /// Posts a write and flushes.
    pub(crate) fn write(&self, peer: &Node, to: &Descriptor, offset: u64, bytes: &[u8], op: u64) {
        self.fabric.write(peer.id, to, offset, bytes, op);
        self.fabric.flush();
    }
}

/// A transport under test.
pub(crate) trait Harness {
    /// One, unless this machine lacks what the transport needs; then the test says so and passes.
    fn ready() -> Option<Self>
    where
        Self: Sized + Default,
    {
        Some(Self::default())
    }
    /// A fabric of peer `id`, or of a new incarnation of one that was killed. Its events go to `sink`.
    fn attach(&mut self, id: u32, sink: Sink) -> Arc<dyn Fabric>;
    /// A node that records its events.
    fn node(&mut self, id: u32) -> Node {
        let (log, sink) = recorder();
        Node { id: PeerId(id), fabric: self.attach(id, sink), log }
    }
    /// Ends a node's process, or what comes closest to it in a test.
    fn kill(&mut self, node: Node);
    /// Lets a little time pass.
    fn pass(&mut self) {
        thread::sleep(Duration::from_millis(1));
    }
    /// Lets time pass until `condition` holds.
    fn until(&mut self, what: &str, condition: &mut dyn FnMut() -> bool) {
        let deadline = Instant::now() + TIMEOUT;
        while !condition() {
            assert!(Instant::now() < deadline, "waited in vain: {what}");
            self.pass();
        }
    }
    /// Two nodes, the first with a link to the second.
    fn pair(&mut self) -> (Node, Node) {
        let (a, b) = (self.node(1), self.node(2));
        a.fabric.connect(b.id, &b.fabric.local_address());
        self.until("the link is up", &mut || a.ups(&b) == 1);
        (a, b)
    }
}

/// The bytes of a memory.
pub(crate) fn bytes_of(memory: &dyn Memory, offset: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    memory.read(offset, &mut bytes);
    bytes
}

/// `len` bytes that differ from place to place.
pub(crate) fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u64).wrapping_mul(0x9e37_79b9).to_le_bytes()[2] ^ seed).collect()
}

/// Short times, so that tests of lost peers end soon.
pub(crate) fn options() -> LinkOptions {
    LinkOptions {
        retry_pause: Duration::from_millis(20),
        ping_interval: Duration::from_millis(200),
        peer_timeout: Duration::from_secs(2),
        ..LinkOptions::default()
    }
}

/// A log and the sink that fills it.
pub(crate) fn recorder() -> (Log, Sink) {
    let log = Log::default();
    let filled = Arc::clone(&log);
    (log, Arc::new(move |peer, event| filled.lock().unwrap().push((peer, event))))
}

/// Blocks each caller until it is opened.
#[derive(Default)]
pub(crate) struct Gate(Mutex<bool>, Condvar);

impl Gate {
    pub(crate) fn pass(&self) {
        let mut open = self.0.lock().unwrap();
        while !*open {
            open = self.1.wait(open).unwrap();
        }
    }
    pub(crate) fn open(&self) {
        *self.0.lock().unwrap() = true;
        self.1.notify_all();
    }
}
