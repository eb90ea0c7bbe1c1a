//! Golden bytes of a hash index: a bucket, a record, the board, and a grant; and of the line of a safe LSN. Primary and
//! clients, or backups, share them, so a change of the format fails here before it is read as something else.

mod golden;

use bytes::Bytes;
use golden::check;
use leeward_format::hash_index::{
    Board, BytesToRead, Content, Extent, Grant, GrantFields, LINE_BYTES, Line, Reader, Record, RecordPlace, Slot,
    SlotPlace, Step, WordWrite, fingerprint, home_bucket, link, publish, record_lines, tag,
};
use leeward_format::partition::Partition;
use leeward_format::safe_lsn::SafeLsnLine;
use leeward_format::{Epoch, Lsn, RegionId, UnixMs, filter};

const NONCE: u64 = 0x0123_4567_89ab_cdef;
const KEY: &[u8] = b"key";
const VALUE: &[u8] = b"value";

fn grant() -> Grant {
    let fields = GrantFields {
        region: RegionId(7),
        term: Epoch(2),
        nonce: NONCE,
        partition: Partition::Range,
        start: Bytes::from_static(b"a"),
        end: None,
        buckets: 4,
        memories: vec![Bytes::from_static(&[1, 2, 3])],
        extents: vec![
            Extent { first: Line(0), lines: 8, content: Content::Buckets, memory: 0, offset: 64 },
            Extent { first: Line(8), lines: 16, content: Content::Records { class: 2 }, memory: 0, offset: 576 },
        ],
        board: BytesToRead { memory: 0, offset: 0, bytes: 64 },
    };
    Grant::try_from(fields).expect("a grant")
}

/// A table with one version of one key, and an overflow bucket; its bucket and its record.
fn table() -> (Vec<u8>, Vec<u8>) {
    let (hash, lsn, line) = (filter::hash(KEY), Lsn(0x1300), Line(10));
    let home = home_bucket(hash, 4);
    let mut words = Vec::new();
    Record { lsn, key: KEY, value: VALUE }.append_to(RecordPlace { nonce: NONCE, line }, &mut words);
    let lines = record_lines(KEY.len(), VALUE.len()).expect("it is short");
    let slot = Slot { fingerprint: fingerprint(hash), tag: tag(lsn), lines, line };
    let place = SlotPlace { bucket: home, index: 1 };
    let mut memory = vec![0; 24 * LINE_BYTES];
    for WordWrite { at, word } in publish(place, slot, &words, None).chain([link(home, Line(4))]) {
        memory[at as usize..][..8].copy_from_slice(&word.to_le_bytes());
    }
    let copy = |line: Line| memory[line.0 as usize * LINE_BYTES..][..LINE_BYTES].to_vec();
    (copy(home), copy(line))
}

#[test]
fn hash_index() {
    let (bucket, record) = table();
    check("bucket", include_str!("golden/hash-index-bucket.hex"), &bucket);
    check("record", include_str!("golden/hash-index-record.hex"), &record);
    let board = Board { nonce: NONCE, readable_until: 1_000_000_000 };
    let words = board.words().map(u64::to_le_bytes).concat();
    check("board", include_str!("golden/hash-index-board.hex"), &words);
    assert_eq!(Board::read(NONCE, &words), Some(board));
    let line = SafeLsnLine { readable_until: 1_000_000_000, lsn: Lsn(300), wall: UnixMs(1_000) };
    let words = line.words(NONCE).map(u64::to_le_bytes).concat();
    check("safe LSN line", include_str!("golden/safe-lsn-line.hex"), &words);
    assert_eq!(SafeLsnLine::read(NONCE, &words), Some(line));
    let encoded = postcard::to_allocvec(&grant()).expect("memory suffices");
    check("grant", include_str!("golden/hash-index-grant.hex"), &encoded);
    assert_eq!(postcard::from_bytes(&encoded), Ok(grant()));
}

#[test]
fn the_golden_table_is_read() {
    let (grant, (bucket, record)) = (grant(), table());
    let Step::Read(reader) = Reader::begin(&grant, KEY) else { panic!("the home bucket is read first") };
    let home = u64::from(home_bucket(filter::hash(KEY), 4).0);
    assert_eq!(reader.place(), BytesToRead { memory: 0, offset: 64 + home * 64, bytes: 64 });
    assert_eq!((reader.record_line(), reader.tries()), (None, 1));
    let Step::Read(reader) = reader.feed(&bucket) else { panic!("then the record") };
    assert_eq!((reader.record_line(), reader.tries()), (Some(Line(10)), 1));
    assert_eq!(reader.place(), BytesToRead { memory: 0, offset: 576 + 2 * 64, bytes: 64 });
    assert_eq!(reader.feed(&record), Step::Found { lsn: Lsn(0x1300), value: VALUE });
}
