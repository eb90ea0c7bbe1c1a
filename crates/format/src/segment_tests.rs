//! Tests of the log segment header.

use super::*;
use proptest::prelude::*;

fn header() -> LogHeader {
    LogHeader { region: RegionId(3), log: LogKind::Large, id: SegmentId(5 << 40 | 2), first_lsn: Lsn(77) }
}

#[test]
fn what_was_written_is_read() {
    assert_eq!(LogHeader::decode(&header().encode()), Ok(header()));
}

#[test]
fn other_versions_say_which() {
    let mut bytes = header().encode();
    bytes[8] = LOG_VERSION as u8 + 1;
    let crc = crc32c::crc32c(&bytes[..60]);
    bytes[60..].copy_from_slice(&crc.to_le_bytes());
    let error = LogHeader::decode(&bytes).unwrap_err().to_string();
    assert_eq!(error, "log segment header: version 5 where 4 is spoken");
}

proptest! {
    #[test]
    fn any_flipped_bit_is_noticed(bit in 0usize..LOG_HEADER_BYTES * 8) {
        let mut bytes = header().encode();
        bytes[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(LogHeader::decode(&bytes).is_err());
    }

    #[test]
    fn hostile_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
        prop_assert!(LogHeader::decode(&bytes).is_err());
    }
}
