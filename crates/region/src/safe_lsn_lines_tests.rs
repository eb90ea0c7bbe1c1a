//! What a reader finds in a line: nothing while it is hidden or closed, and never what another line showed.

use super::*;
use leeward_fabric::{PeerId, SimNetwork, SimOptions};

fn read(line: &OpenLine, nonce: u64) -> Option<SafeLsnLine> {
    let mut bytes = [0; SAFE_LSN_LINE_BYTES];
    line.memory.read(line.index * SAFE_LSN_LINE_BYTES, &mut bytes);
    SafeLsnLine::read(nonce, &bytes)
}

fn lines() -> Arc<SafeLsnLines> {
    let network = SimNetwork::new(1, SimOptions::default());
    Arc::new(SafeLsnLines::new(network.node(PeerId(1), Arc::new(|_, _| ())), Incarnation(1)))
}

#[test]
fn a_line_that_is_hidden_or_closed_shows_nothing() {
    let lines = lines();
    let mut line = lines.open(Nanos::ZERO, (RegionId(1), Epoch(1))).expect("a line");
    assert_eq!(read(&line, line.nonce), None, "nothing is shown yet");
    line.show(Lsn(5), UnixMs(9));
    let shown = SafeLsnLine { readable_until: 0, lsn: Lsn(5), wall: UnixMs(9) };
    assert_eq!(read(&line, line.nonce), Some(shown));
    line.hide();
    assert_eq!(read(&line, line.nonce), None);
    line.show(Lsn(5), UnixMs(9));
    assert_eq!(read(&line, line.nonce), Some(shown));

    let (nonce, index) = (line.nonce, line.index);
    drop(line);
    let mut next = lines.open(Nanos::ZERO, (RegionId(1), Epoch(2))).expect("a line");
    assert_eq!((next.index, read(&next, nonce)), (index, None), "it is used again, and what it showed is gone");
    next.show(Lsn(6), UnixMs(9));
    assert_eq!((read(&next, nonce), read(&next, next.nonce).is_some()), (None, true));
}

#[test]
fn there_are_only_so_many_lines() {
    let lines = lines();
    let open = || lines.open(Nanos::ZERO, (RegionId(1), Epoch(1)));
    let mut all: Vec<OpenLine> = (0..MOST_LINES).map(|_| open().expect("a line")).collect();
    assert!(open().is_none());
    let nonces: std::collections::BTreeSet<u64> = all.iter().map(|line| line.nonce).collect();
    assert_eq!(nonces.len(), MOST_LINES);
    all.pop();
    assert!(open().is_some());
}
