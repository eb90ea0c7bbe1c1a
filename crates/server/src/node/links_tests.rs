//! Batches: what is counted in one, and what becomes of one whose link changes. By which clock a primary may publish a safe LSN.

use super::*;
use leeward_fabric::{LinkEvent, LinkOptions, Sink, TcpFabric};
use leeward_format::frame::FRAME_HEADER_BYTES;
use leeward_format::op::OpResult;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

fn answer(id: u64) -> Control {
    Control::Forwarded { id, result: OpResult::Done, committed: None }
}

fn framed(ids: std::ops::Range<u64>) -> Vec<u8> {
    let mut bytes = Vec::new();
    ids.for_each(|id| write_frame(FrameKind::Control, &answer(id), &mut bytes));
    bytes
}

#[test]
fn frames_are_counted_however_damaged_they_are() {
    assert_eq!([0, 1, 2, 200].map(|count| frames_in(&framed(0..count))), [0, 1, 2, 200]);
    let two = framed(0..2);
    assert_eq!(frames_in(&two[..two.len() - 1]), 2, "half a frame");
    assert_eq!(frames_in(&two[..FRAME_HEADER_BYTES - 1]), 1, "half a header");
    let mut damaged = two;
    damaged[4] = !damaged[4];
    assert_eq!(frames_in(&damaged), 1, "another version");
}

/// A fabric with a link to itself, and the messages that come.
fn fabric() -> (Arc<TcpFabric>, Receiver<Vec<u8>>) {
    let (sender, messages) = channel();
    let (up, is_up) = channel();
    let sink: Sink = Arc::new(move |_, event| match event {
        LinkEvent::Message(bytes) => drop(sender.send(bytes)),
        LinkEvent::Up => drop(up.send(())),
        _ => {}
    });
    let fabric = TcpFabric::bind(PeerId(1), "127.0.0.1:0", LinkOptions::default(), sink).expect("a fabric");
    fabric.connect(PeerId(1), &fabric.local_address());
    is_up.recv_timeout(Duration::from_secs(10)).expect("the link comes up");
    (fabric, messages)
}

#[test]
fn a_batch_is_one_message_and_ends_with_its_link() {
    let (fabric, messages) = fabric();
    let mut link = Link::default();
    let send = |link: &mut Link| {
        link.send_batch(ServerId(1), &*fabric);
        fabric.flush();
    };
    link.changed(true);
    link.batch = framed(0..3);
    link.changed(false);
    link.changed(true);
    send(&mut link);
    link.batch = framed(3..5);
    send(&mut link);
    send(&mut link);
    link.batch = framed(5..6);
    send(&mut link);
    let came = [(); 2].map(|()| messages.recv_timeout(Duration::from_secs(10)).expect("a message"));
    assert_eq!(came, [framed(3..5), framed(5..6)], "nothing of the link before, and nothing twice");
}

#[test]
fn a_clock_reading_counts_only_if_it_was_heard_before_the_lease_was_checked() {
    let at = Nanos::from_millis;
    let mut clock = ClockHeard::default();
    assert_eq!(clock.before(at(9)), None);
    clock.hear(100, at(10));
    assert_eq!([9, 10, 11].map(|now| clock.before(at(now))), [None, None, Some(100)]);
    clock.hear(200, at(20));
    assert_eq!([15, 20, 21].map(|now| clock.before(at(now))), [Some(100), Some(100), Some(200)]);
}
