//! Golden files of ring messages: their bytes as they stand in a peer's memory, range by range. A change of these bytes
//! is a change of the protocol.

use leeward_format::ring::{Identity, RingKind, RingMessage, Slot, read_message, write_message};

/// The bytes of an annotated file: on each line the digits before `#`, two for each byte.
fn golden(file: &str) -> Vec<u8> {
    let digits = file.lines().flat_map(|line| line.split('#').next().expect("split answers once").split_whitespace());
    digits.map(|byte| u8::from_str_radix(byte, 16).expect("two hexadecimal digits")).collect()
}

fn check(identity: Identity, kind: RingKind, slot: Slot, payload: &[u8], file: &str) {
    let mut written = Vec::new();
    write_message(identity, kind, slot, payload, &mut written);
    let hex: Vec<String> = written.iter().map(|byte| format!("{byte:02x}")).collect();
    let expected = golden(file);
    assert!(written == expected, "{kind:?} is written as\n{}", hex.join(" "));
    assert_eq!(read_message(identity, &expected), Ok(Some(RingMessage { kind, slot, payload })));
}

#[test]
fn ring_messages() {
    let key = 0x0123_4567_89ab_cdef;
    let request = Identity { key, sequence: 1, place: 0 };
    let slot = Slot { at: 64, room: 128 };
    check(request, RingKind::Frames, slot, b"a frame", include_str!("golden/ring-request.hex"));
    let noop = Identity { key, sequence: 2, place: 992 };
    check(noop, RingKind::Noop, Slot::default(), &[], include_str!("golden/ring-noop.hex"));
    let fetch = Identity { key, sequence: 3, place: 0 };
    let wanted = 1_u64.to_le_bytes();
    check(fetch, RingKind::Fetch, Slot { at: 0, room: 256 }, &wanted, include_str!("golden/ring-fetch.hex"));
    let too_small = Identity { key, sequence: 1, place: 64 };
    let needed = Slot { at: 0, room: 256 };
    check(too_small, RingKind::TooSmall, needed, &[], include_str!("golden/ring-too-small.hex"));
}
