//! Frames from a hostile peer or a damaged disk: decoding answers an error or asks for more, and never panics or
//! allocates by a length that was not checked.

use leeward_format::DecodeError;
use leeward_format::control::Control;
use leeward_format::coordinator::{CoordinatorOp, CoordinatorReply, CoordinatorRequest, LogBatch};
use leeward_format::frame::{
    FRAME_HEADER_BYTES, FRAME_VERSION, FrameKind, body_bytes, frame_bytes, read_frame, write_frame,
};
use leeward_format::manifest::Entry;
use leeward_format::op::{Reply, Request};
use proptest::prelude::*;

const LIMIT: usize = 1 << 20;

/// A frame of `kind` around any body, checksum and all.
fn sealed(kind: FrameKind, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; FRAME_HEADER_BYTES];
    (bytes[4], bytes[5]) = (FRAME_VERSION, kind as u8);
    bytes[8..12].copy_from_slice(&(body.len() as u32).to_le_bytes());
    bytes.extend_from_slice(body);
    let crc = crc32c::crc32c(&bytes[4..]);
    bytes[..4].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// Reads `bytes` as every kind of frame there is.
fn read_as_all(body: &[u8]) {
    fn read<T: serde::de::DeserializeOwned>(kind: FrameKind, body: &[u8]) {
        let bytes = sealed(kind, body);
        if let Ok(read) = read_frame::<T>(kind, &bytes, LIMIT) {
            assert_eq!(read.map(|(_, len)| len), Some(bytes.len()));
        }
    }
    read::<Entry>(FrameKind::ManifestEdit, body);
    read::<Control>(FrameKind::Control, body);
    read::<Request>(FrameKind::Request, body);
    read::<Reply>(FrameKind::Reply, body);
    read::<CoordinatorRequest>(FrameKind::CoordinatorRequest, body);
    read::<CoordinatorReply>(FrameKind::CoordinatorReply, body);
    read::<LogBatch>(FrameKind::CoordinatorLog, body);
}

proptest! {
    #[test]
    fn a_frame_is_read_as_it_was_written(body in any::<Vec<u8>>(), rest in any::<Vec<u8>>()) {
        let mut bytes = Vec::new();
        write_frame(FrameKind::Request, &body, &mut bytes);
        let len = bytes.len();
        prop_assert_eq!(len, FRAME_HEADER_BYTES + body_bytes(&body));
        bytes.extend_from_slice(&rest);
        prop_assert_eq!(read_frame(FrameKind::Request, &bytes, LIMIT), Ok(Some((body, len))));
    }

    #[test]
    fn a_frame_that_is_cut_off_asks_for_more(body in any::<Vec<u8>>(), cut in any::<prop::sample::Index>()) {
        let mut bytes = Vec::new();
        write_frame(FrameKind::Request, &body, &mut bytes);
        let cut = cut.index(bytes.len());
        prop_assert_eq!(read_frame::<Vec<u8>>(FrameKind::Request, &bytes[..cut], LIMIT), Ok(None));
    }

    #[test]
    fn no_flipped_bit_passes(body in any::<Vec<u8>>(), at in any::<prop::sample::Index>(), bit in 0..8) {
        let mut bytes = Vec::new();
        write_frame(FrameKind::Request, &body, &mut bytes);
        let at = at.index(bytes.len());
        bytes[at] ^= 1_u8 << bit;
        // A longer length asks for bytes that never come; everything else is refused.
        prop_assert!(matches!(read_frame::<Vec<u8>>(FrameKind::Request, &bytes, LIMIT), Err(_) | Ok(None)));
    }

    #[test]
    fn arbitrary_bytes_are_no_frame(bytes in any::<Vec<u8>>()) {
        prop_assert!(!matches!(read_frame::<Vec<u8>>(FrameKind::Reply, &bytes, LIMIT), Ok(Some(_))));
    }

    #[test]
    fn arbitrary_bodies_with_a_valid_checksum_never_panic(body in prop::collection::vec(any::<u8>(), 0..256)) {
        read_as_all(&body);
    }

    #[test]
    fn bodies_of_small_numbers_get_deeper_and_never_panic(body in prop::collection::vec(0_u8..8, 0..256)) {
        read_as_all(&body);
    }
}

/// A vector that claims to be longer than memory is refused by its missing bytes, not by the allocator.
#[test]
fn a_length_is_not_believed() {
    let mut body = vec![1, 1, 0];
    body.extend_from_slice(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01]);
    read_as_all(&body);
}

/// Nesting that takes a byte or two a level must not become recursion.
#[test]
fn nested_operations_do_not_exhaust_the_stack() {
    let body: Vec<u8> = [2, 1].into_iter().chain([3, 1].into_iter().cycle().take(LIMIT / 2)).collect();
    let bytes = sealed(FrameKind::CoordinatorRequest, &body);
    assert!(read_frame::<CoordinatorRequest>(FrameKind::CoordinatorRequest, &bytes, LIMIT).is_err());
    let op = CoordinatorOp::All(vec![CoordinatorOp::Delete { path: "/a".into(), version: None }]);
    let mut bytes = Vec::new();
    write_frame(FrameKind::CoordinatorRequest, &CoordinatorRequest::Submit { id: 1, op }, &mut bytes);
    assert!(matches!(read_frame::<CoordinatorRequest>(FrameKind::CoordinatorRequest, &bytes, LIMIT), Ok(Some(_))));
}

#[test]
fn another_kind_version_or_size_is_refused_by_the_header() {
    let mut bytes = Vec::new();
    write_frame(FrameKind::Request, &[7_u8; 32].as_slice(), &mut bytes);
    let len = bytes.len();
    assert_eq!(frame_bytes(FrameKind::Request, &bytes, LIMIT), Ok(Some(len)));
    assert_eq!(frame_bytes(FrameKind::Request, &bytes[..FRAME_HEADER_BYTES - 1], LIMIT), Ok(None));
    let refused = |bytes: &[u8], kind, limit| {
        assert!(matches!(frame_bytes(kind, bytes, limit), Err(DecodeError::Invalid { what: "frame", .. })));
    };
    refused(&bytes, FrameKind::Reply, LIMIT);
    refused(&bytes, FrameKind::Request, 32);
    for (at, value) in [(6, 1), (7, 1)] {
        let mut other = bytes.clone();
        other[at] = value;
        refused(&other, FrameKind::Request, LIMIT);
    }
    bytes[4] = FRAME_VERSION + 1;
    let other = DecodeError::Version { what: "frame", found: FRAME_VERSION as u32 + 1, known: FRAME_VERSION.into() };
    assert_eq!(frame_bytes(FrameKind::Request, &bytes, LIMIT), Err(other));
}
