//! A backup reads the line of a primary whose memory it has mapped, and takes what it reads only while nobody else can be
//! primary.

use super::*;
use leeward_fabric::{PeerId, ReadableMemory, SimFabric, SimNetwork, SimOptions};
use leeward_format::Lsn;
use std::sync::Arc;

const REGION: RegionId = RegionId(7);
const PRIMARY: ServerId = ServerId(1);
const NONCE: u64 = 99;
const SUBJECT: Subject =
    Subject { session: PrimarySession { primary: PRIMARY, term: Epoch(2), session: 1 }, epoch: Epoch(3) };

/// A primary with a line, and a backup that is linked to it.
struct Group {
    network: SimNetwork,
    memory: ReadableMemory,
    fabric: Arc<SimFabric>,
    _primary: Arc<SimFabric>,
    lines: Lines,
}

impl Group {
    fn new() -> Group {
        let network = SimNetwork::new(3, SimOptions::default());
        let node = |id| network.node(PeerId(id), Arc::new(|_, _| ()));
        let (primary, fabric) = (node(PRIMARY.0), node(2));
        let memory = primary.allocate_readable(2 * SAFE_LSN_LINE_BYTES).expect("memory");
        fabric.connect(links::peer(PRIMARY), "");
        network.advance(Nanos::from_millis(10));
        Group { network, memory, fabric, _primary: primary, lines: Lines::default() }
    }

    /// The primary shows a line, the second of its memory.
    fn show(&self, line: SafeLsnLine) {
        for (at, word) in line.words(NONCE).into_iter().enumerate() {
            self.memory.store_u64(SAFE_LSN_LINE_BYTES + 8 * at, word);
        }
    }

    /// It has answered at 5,000 by its clock what was asked at 1,000.
    fn grant(&mut self) {
        let (memory, offset) = (self.memory.descriptor().0.into(), SAFE_LSN_LINE_BYTES as u64);
        let grant = SafeLsnLineGrant { memory, offset, nonce: NONCE, clock: 5_000 };
        self.lines.granted(REGION, SUBJECT, Nanos(1_000), grant);
    }

    fn read(&mut self) -> Option<Shown> {
        let shown = self.lines.read(&*self.fabric, REGION);
        self.fabric.flush();
        self.network.advance(self.network.now() + Nanos::from_millis(10));
        shown
    }
}

fn line() -> SafeLsnLine {
    SafeLsnLine { readable_until: 6_000, lsn: Lsn(30), wall: UnixMs(500) }
}

#[test]
fn a_line_is_read_once_its_memory_is_mapped_and_counts_while_the_lease_does() {
    let mut group = Group::new();
    group.show(line());
    assert!(group.read().is_none(), "nothing was granted");
    group.grant();
    assert!(group.read().is_none(), "a read is posted, which maps the memory");
    let shown = group.read().expect("it is mapped");
    assert_eq!((shown.subject, shown.line), (SUBJECT, line()));
    let wall = UnixMs(500);
    assert!(shown.counts(Nanos(1_799), wall), "the primary's clock shows at most 5,999");
    assert!(!shown.counts(Nanos(1_800), wall), "it may show 6,000");
    let lag = MOST_WALL_LAG_MS;
    assert!(shown.counts(Nanos(1_001), UnixMs(500 + lag)) && shown.counts(Nanos(1_001), UnixMs(500 - lag)));
    assert!(!shown.counts(Nanos(1_001), UnixMs(501 + lag)) && !shown.counts(Nanos(1_001), UnixMs(499 - lag)));

    group.show(SafeLsnLine { lsn: Lsn(31), ..line() });
    assert_eq!(group.read().map(|shown| shown.line.lsn), Some(Lsn(31)));
    group.memory.store_u64(SAFE_LSN_LINE_BYTES + 24, 0);
    assert!(group.read().is_none(), "it is hidden");
    group.show(line());
    assert!(group.read().is_some(), "the grant is as before");
}

#[test]
fn a_grant_ends_with_the_link_the_copy_and_doubts_about_the_clock() {
    let ends: [fn(&mut Lines); 3] =
        [|lines| lines.link_changed(PRIMARY), |lines| lines.forget(REGION), Lines::doubt_clock];
    for end in ends {
        let mut group = Group::new();
        group.show(line());
        group.grant();
        assert!(group.read().is_none() && group.read().is_some());
        group.lines.link_changed(ServerId(9));
        group.lines.forget(RegionId(9));
        assert!(group.read().is_some(), "others concern it not");
        end(&mut group.lines);
        assert!(group.read().is_none());
    }
}

#[test]
fn a_server_that_lets_nobody_map_its_memory_is_not_asked_for_a_while() {
    let mut group = Group::new();
    group.show(line());
    group.grant();
    assert!(group.read().is_none() && group.lines.are_wanted(Nanos(1), PRIMARY));
    let refused = Nanos::from_secs(1);
    group.lines.refused(refused, PRIMARY);
    assert!(group.read().is_none(), "the grant is given up");
    assert!(!group.lines.are_wanted(refused + REST, PRIMARY));
    assert!(group.lines.are_wanted(refused + REST + Nanos(1), PRIMARY));
    assert!(group.lines.are_wanted(refused, ServerId(9)));
    group.lines.link_changed(PRIMARY);
    assert!(group.lines.are_wanted(refused, PRIMARY), "another process, perhaps");
}
