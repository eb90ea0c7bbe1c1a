//! Tests of the record codec.

use super::*;
use proptest::prelude::*;

const REGION: RegionId = RegionId(7);

fn seed() -> RecordSeed {
    RecordSeed::new(REGION, LogKind::Recovery, SegmentId(1 << 40))
}

fn encode(record: &Record<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    record.append_to(seed(), &mut bytes);
    bytes
}

fn put<'a>(key: &'a [u8], value: &'a [u8]) -> Record<'a> {
    Record { stamp: Lsn(9).into(), kind: RecordKind::Put, flags: 0, request: None, key, value }
}

#[test]
fn a_record_is_valid_in_its_own_place_only() {
    let bytes = encode(&put(b"key", b"value"));
    assert_eq!(read_record(seed(), &bytes), Ok(Some(put(b"key", b"value"))));
    let others = [
        RecordSeed::new(RegionId(8), LogKind::Recovery, SegmentId(1 << 40)),
        RecordSeed::new(REGION, LogKind::Large, SegmentId(1 << 40)),
        RecordSeed::new(REGION, LogKind::Recovery, SegmentId(2 << 40)),
    ];
    for other in others {
        assert!(matches!(read_record(other, &bytes), Err(DecodeError::Checksum { .. })));
        assert!(read_record_unchecked(&bytes).is_ok());
    }
}

#[test]
fn untouched_bytes_and_too_few_of_them_are_the_end() {
    assert_eq!(read_record(seed(), &[]), Ok(None));
    assert_eq!(read_record(seed(), &[1; RECORD_HEADER_BYTES - 1]), Ok(None));
    assert_eq!(read_record(seed(), &[0; 100]), Ok(None));
}

#[test]
fn a_torn_record_is_an_error() {
    let bytes = encode(&put(b"key", &[5; 100]));
    assert!(matches!(read_record(seed(), &bytes[..60]), Err(DecodeError::Short { .. })));
    let mut torn = bytes.clone();
    torn[60..].fill(0);
    assert!(matches!(read_record(seed(), &torn), Err(DecodeError::Checksum { .. })));
}

#[test]
fn fields_out_of_range_are_refused_before_their_length_is_believed() {
    let with = |at: usize, field: &[u8]| {
        let mut bytes = encode(&put(b"key", b"value"));
        bytes[at..at + field.len()].copy_from_slice(field);
        read_record_unchecked(&bytes).map(|_| ())
    };
    assert!(with(4, &(MAX_KEY_BYTES as u16 + 1).to_le_bytes()).is_err());
    assert!(with(16, &(MAX_VALUE_BYTES as u32 + 1).to_le_bytes()).is_err());
    assert!(with(16, &u32::MAX.to_le_bytes()).is_err());
    assert!(with(6, &[6]).is_err(), "a kind of the future");
    let refused = |value: &[u8], request| {
        let mut bytes = encode(&Record { request, ..put(&[0], value) });
        bytes[6] = RecordKind::Refused as u8;
        read_record_unchecked(&bytes).map(|_| ())
    };
    let request = Some(RequestId { client: 1, sequence: 1 });
    assert!(refused(b"", request).is_ok() && refused(&[1; 8], request).is_ok());
    assert!(
        refused(b"", None).is_err() && refused(&[1; 7], request).is_err(),
        "without a request id, or with no version"
    );
    let ingest = |count: &[u8]| {
        let mut bytes = encode(&put(&[0], count));
        bytes[6] = RecordKind::Ingest as u8;
        read_record_unchecked(&bytes).map(|record| record.map(|record| record.last_lsn()))
    };
    assert_eq!(ingest(&7u64.to_le_bytes()), Ok(Some(Lsn(15))));
    let named = Record { request: Some(RequestId { client: 1, sequence: 1 }), ..put(&[0], &[7; 8]) };
    let mut named = encode(&named);
    named[6] = RecordKind::Ingest as u8;
    assert!(read_record_unchecked(&named).is_err(), "an ingest has no request id");
    assert!(ingest(&[0; 8]).is_err() && ingest(&[0xff; 8]).is_err() && ingest(&[1; 7]).is_err(), "no number of LSNs");
    let range = |start: &[u8], end: &[u8]| {
        let mut bytes = encode(&put(start, end));
        bytes[6] = RecordKind::DeleteRange as u8;
        read_record_unchecked(&bytes).map(|_| ())
    };
    assert!(range(b"a", b"b").is_ok() && range(b"a", b"").is_ok());
    assert!(range(b"b", b"a").is_err() && range(b"a", b"a").is_err(), "an empty or reversed range");
    assert!(with(6, &[2]).is_err(), "a delete with a value");
    assert!(with(7, &[8]).is_err(), "a flag of the future");
    assert!(matches!(with(7, &[4]), Err(DecodeError::Short { .. })), "a request id takes twelve bytes more");
    assert!(matches!(with(7, &[2]), Err(DecodeError::Short { .. })), "an expiry takes eight bytes more");
    let expiring = |kind: u8, ms: u64| {
        let stamp = Stamp { lsn: Lsn(9), expires: Expiry::from_ms(5) };
        let mut bytes = encode(&Record { stamp, ..put(b"key", b"") });
        bytes[6] = kind;
        bytes[20..28].copy_from_slice(&ms.to_le_bytes());
        read_record_unchecked(&bytes).map(|_| ())
    };
    assert_eq!(expiring(1, Expiry::MAX_MS), Ok(()));
    assert!(expiring(1, 0).is_err() && expiring(1, Expiry::MAX_MS + 1).is_err(), "no such instant");
    assert!(expiring(2, 5).is_err(), "a delete that expires");
}

proptest! {
    #[test]
    fn what_was_written_is_read(
        key in prop::collection::vec(any::<u8>(), 1..300),
        value in prop::collection::vec(any::<u8>(), 0..3000),
        lsn: u64, expires in prop::option::of(1..=Expiry::MAX_MS), flags in 0u8..2, is_delete: bool,
        request in prop::option::of((any::<u64>(), any::<u32>())),
    ) {
        let kind = if is_delete { RecordKind::Delete } else { RecordKind::Put };
        let value = if is_delete { &[] } else { &value[..] };
        let expires = expires.filter(|_| !is_delete).and_then(Expiry::from_ms);
        let request = request.map(|(client, sequence)| RequestId { client, sequence });
        let record = Record { stamp: Stamp { lsn: Lsn(lsn), expires }, kind, flags, request, key: &key, value };
        let mut bytes = encode(&record);
        prop_assert_eq!(bytes.len(), record.bytes());
        bytes.extend_from_slice(&[0xee; 30]);
        prop_assert_eq!(read_record(seed(), &bytes), Ok(Some(record)));
    }

    #[test]
    fn any_flipped_bit_is_noticed(value in prop::collection::vec(any::<u8>(), 0..200), bit: prop::sample::Index) {
        let record = put(b"key", &value);
        let mut bytes = encode(&record);
        let bit = bit.index(bytes.len() * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
        prop_assert_ne!(read_record(seed(), &bytes), Ok(Some(record)));
    }

    #[test]
    fn hostile_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = read_record(seed(), &bytes);
        if let Ok(Some(record)) = read_record_unchecked(&bytes) {
            prop_assert!(record.bytes() <= bytes.len());
        }
    }
}
