//! Golden bytes of every frame, and hostile ones.

use super::*;
use proptest::prelude::*;

const PLACE: RemotePlace =
    RemotePlace { id: 0x0102_0304_0506_0708, key: 0x1112_1314_1516_1718, offset: 0x2122_2324_2526_2728 };

fn memory(permission: Permission) -> MemoryId {
    MemoryId { id: PLACE.id, key: PLACE.key, permission }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn golden_requests() {
    let golden = [
        (Request::Message(3), "crc 01 000000 03000000"),
        (Request::Write(PLACE, 64), "crc 02 000000 40000000 0807060504030201 1817161514131211 2827262524232221"),
        (Request::Read(PLACE, 64), "crc 03 000000 40000000 0807060504030201 1817161514131211 2827262524232221"),
        (Request::Ping, "crc 04 000000 00000000"),
        (
            Request::Import(memory(Permission::ReadWrite)),
            "crc 05 000000 00000000 0807060504030201 1817161514131211 0000000000000000",
        ),
        (
            Request::Import(memory(Permission::ReadOnly)),
            "crc 05 000000 00000000 0807060504030201 1817161514131211 0100000000000000",
        ),
        (Request::Release(PLACE), "crc 06 000000 00000000 0807060504030201 1817161514131211 2827262524232221"),
        (
            Request::Moved { written: 5, read: 6 },
            "crc 07 000000 00000000 0500000000000000 0600000000000000 0000000000000000",
        ),
    ];
    for (request, text) in golden {
        let mut bytes = Vec::new();
        request.encode(&mut bytes);
        let text = text.replace(' ', "").replace("crc", &hex(&crc32c::crc32c(&bytes[4..]).to_le_bytes()));
        assert_eq!(hex(&bytes), text);
        assert_eq!(bytes.len(), Request::header_bytes(&bytes));
        assert_eq!(Request::decode(&bytes), Ok(request));
    }
    let mut ping = Vec::new();
    Request::Ping.encode(&mut ping);
    assert_eq!(hex(&ping), "e73035ad0400000000000000", "checksum included");
}

#[test]
fn golden_answers() {
    let golden = [
        (Answer::Ack(5), "crc 10 000000 00000000 0500000000000000"),
        (Answer::Refused(5), "crc 11 000000 00000000 0500000000000000"),
        (Answer::ReadBytes(5, 9), "crc 12 000000 09000000 0500000000000000"),
        (Answer::ReadEnd(5), "crc 13 000000 00000000 0500000000000000"),
        (Answer::Imported(5), "crc 14 000000 00000000 0500000000000000"),
        (Answer::Granted(5, 9), "crc 15 000000 09000000 0500000000000000"),
        (Answer::Revoked(5), "crc 16 000000 00000000 0500000000000000"),
    ];
    for (answer, text) in golden {
        let mut bytes = Vec::new();
        answer.encode(&mut bytes);
        let text = text.replace(' ', "").replace("crc", &hex(&crc32c::crc32c(&bytes[4..]).to_le_bytes()));
        assert_eq!(hex(&bytes), text);
        assert_eq!(Answer::decode(bytes.first_chunk().unwrap()), Ok(answer));
    }
}

#[test]
fn headers_in_pieces_are_the_same_headers() {
    let mut bytes = Vec::new();
    let requests = [Request::Ping, Request::Write(PLACE, 0), Request::Message(0), Request::Read(PLACE, 1)];
    for request in requests {
        request.encode(&mut bytes);
    }
    for size in 1..=bytes.len() {
        let mut header = HeaderBuffer::default();
        let mut found = Vec::new();
        for mut piece in bytes.chunks(size) {
            while let Some(request) = header.request(&mut piece).unwrap() {
                found.push(request);
            }
        }
        assert_eq!(found, requests, "in pieces of {size}");
    }
}

#[test]
fn what_makes_no_sense_is_refused_although_its_checksum_holds() {
    let sealed = |kind: u8, reserved: u8, length: u32| {
        let mut bytes = [0; LONG_REQUEST];
        (bytes[4], bytes[6]) = (kind, reserved);
        bytes[8..12].copy_from_slice(&length.to_le_bytes());
        let header = Request::header_bytes(&bytes);
        seal(&mut bytes[..header]);
        Request::decode(&bytes[..header])
    };
    assert_eq!(sealed(PING, 0, 0), Ok(Request::Ping));
    let senseless = [
        (PING, 1, 0),
        (PING, 0, 1),
        (IMPORT, 0, 1),
        (RELEASE, 0, 1),
        (MOVED, 0, 1),
        (0, 0, 0),
        (ACK, 0, 0),
        (255, 0, 0),
    ];
    for (kind, reserved, length) in senseless {
        assert!(matches!(sealed(kind, reserved, length), Err(FrameError::Invalid(_))), "{kind} {reserved} {length}");
    }
    for permission in [2, 256, u64::MAX] {
        let mut header = [0; LONG_REQUEST];
        header[4] = IMPORT;
        header[28..].copy_from_slice(&permission.to_le_bytes());
        seal(&mut header);
        assert!(matches!(Request::decode(&header), Err(FrameError::Invalid(_))), "permission {permission}");
    }
    let limit = crate::MAX_MESSAGE_BYTES as u32;
    assert_eq!(sealed(MESSAGE, 0, limit), Ok(Request::Message(limit)));
    assert!(matches!(sealed(MESSAGE, 0, limit + 1), Err(FrameError::Invalid(_))));
}

proptest! {
    #[test]
    fn any_flipped_bit_of_a_header_is_noticed(kind in 0..7usize, bit in 0..LONG_REQUEST * 8, length in 0..1000u32) {
        let requests = [Request::Message(length), Request::Write(PLACE, length), Request::Read(PLACE, length),
            Request::Ping, Request::Import(memory(Permission::ReadOnly)), Request::Release(PLACE),
            Request::Moved { written: 1, read: 2 }];
        let mut bytes = Vec::new();
        requests[kind].encode(&mut bytes);
        let bit = bit % (bytes.len() * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
        // A flipped kind may ask for more bytes than there are; a stream would go on with the next ones.
        bytes.resize(bytes.len().max(Request::header_bytes(&bytes)), 0);
        let header = Request::header_bytes(&bytes);
        prop_assert!(Request::decode(&bytes[..header]).is_err());
    }

    #[test]
    fn any_bytes_are_decoded_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut input = &bytes[..];
        let mut header = HeaderBuffer::default();
        while let Ok(Some(_)) = header.request(&mut input) {}
        let mut input = &bytes[..];
        let mut header = HeaderBuffer::default();
        while let Ok(Some(_)) = header.answer(&mut input) {}
    }
}
