//! Slots, records, grants and boards: what is written is read, and hostile bytes are nothing or an error.

use super::*;
use crate::partition::Partition;
use crate::{Epoch, MAX_KEY_BYTES, RegionId, filter};
use bytes::Bytes;
use proptest::prelude::*;

const NONCE: u64 = 0x5eed_5eed_0000_0001;
const PLACE: RecordPlace = RecordPlace { nonce: NONCE, line: Line(9) };

/// A grant of 40 home buckets in two extents, 8 overflow buckets, and records of two classes.
fn fields() -> GrantFields {
    let extent = |first, lines, content, memory, offset| Extent { first: Line(first), lines, content, memory, offset };
    GrantFields {
        region: RegionId(7),
        term: Epoch(2),
        nonce: NONCE,
        partition: Partition::Range,
        start: Bytes::from_static(b"a"),
        end: Some(Bytes::from_static(b"m")),
        buckets: 40,
        memories: vec![Bytes::from_static(b"one"), Bytes::from_static(b"two")],
        extents: vec![
            extent(0, 32, Content::Buckets, 0, 0),
            extent(32, 16, Content::Buckets, 1, 64),
            extent(100, 40, Content::Records { class: 2 }, 0, 32 * 64),
            extent(u32::MAX - 255, 256, Content::Records { class: 256 }, 1, 1 << 40),
        ],
        board: BytesToRead { memory: 1, offset: 0, bytes: 64 },
    }
}

fn grant() -> Grant {
    Grant::try_from(fields()).expect("a grant")
}

fn encode(lsn: u64, key: &[u8], value: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    Record { lsn: Lsn(lsn), key, value }.append_to(PLACE, &mut bytes);
    bytes
}

/// Its words, and what is behind them in their lines: bytes of a record before.
fn lines(mut words: Vec<u8>) -> Vec<u8> {
    words.resize(words.len().next_multiple_of(LINE_BYTES), 0xee);
    words
}

proptest! {
    #[test]
    fn a_slot_is_read_as_it_was_written(hash in any::<u64>(), lsn in any::<u64>(), lines in 1..=MAX_CLASS_LINES, line in 1..=u32::MAX) {
        let slot = Slot { fingerprint: fingerprint(hash), tag: tag(Lsn(lsn)), lines, line: Line(line) };
        prop_assert_eq!(Slot::from_word(slot.word()), Some(slot));
    }

    #[test]
    fn a_home_bucket_is_one_of_the_table(hash in any::<u64>(), buckets in 1..=u32::MAX) {
        prop_assert!(home_bucket(hash, buckets) < Line(buckets));
    }

    #[test]
    fn a_record_is_read_as_it_was_written_and_as_no_other(
        key in prop::collection::vec(any::<u8>(), 1..100),
        value in prop::collection::vec(any::<u8>(), 0..300),
        lsn in 1..=u64::MAX,
        flip in any::<prop::sample::Index>(),
    ) {
        let words = encode(lsn, &key, &value);
        let length = record_lines(key.len(), value.len()).map(usize::from);
        prop_assert_eq!(words.len(), (RECORD_HEADER_BYTES + key.len() + value.len()).next_multiple_of(8));
        let covered = RECORD_HEADER_BYTES + key.len() + value.len();
        let mut bytes = lines(words);
        prop_assert_eq!(Some(bytes.len() / LINE_BYTES), length);
        prop_assert_eq!(Record::read(PLACE, &bytes), Some(Record { lsn: Lsn(lsn), key: &key, value: &value }));
        prop_assert_eq!(Record::read(RecordPlace { nonce: NONCE + 1, ..PLACE }, &bytes), None, "another table");
        prop_assert_eq!(Record::read(RecordPlace { line: Line(10), ..PLACE }, &bytes), None, "another place");
        let longer = [&bytes[..], &[0; LINE_BYTES]].concat();
        prop_assert_eq!(Record::read(PLACE, &longer), None, "the slot is of another record");
        prop_assert_eq!(Record::read(PLACE, &bytes[LINE_BYTES..]), None);
        let bit = flip.index(covered * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
        prop_assert_eq!(Record::read(PLACE, &bytes), None);
        bytes[bit / 8] ^= 1 << (bit % 8);
        bytes[..WORD_BYTES].fill(0);
        prop_assert_eq!(Record::read(PLACE, &bytes), None, "poisoned");
    }

    #[test]
    fn hostile_bytes_are_no_record_or_one_within_them(mut bytes in prop::collection::vec(any::<u8>(), 0..300), lengths in any::<Option<(u8, u8)>>()) {
        if let (Some((key, value)), true) = (lengths, bytes.len() >= RECORD_HEADER_BYTES) {
            bytes[12..16].copy_from_slice(&[key, 0, value, 0]);
        }
        if let Some(record) = Record::read(PLACE, &bytes) {
            prop_assert!(RECORD_HEADER_BYTES + record.key.len() + record.value.len() <= bytes.len());
        }
    }

    /// A reader ends after a bounded number of reads, all of them granted, whatever it is fed.
    #[test]
    fn a_hostile_table_is_read_within_its_grant(content in prop::collection::vec(hostile_line(), 1..200)) {
        let grant = grant();
        let (mut step, mut reads, mut content) = (Reader::begin(&grant, b"key"), 0, content.into_iter().cycle());
        while let Step::Read(reader) = step {
            let place = reader.place();
            prop_assert!(is_granted(&grant, place), "{place:?}");
            reads += 1;
            prop_assert!(reads <= usize::from(TRIES) * usize::from(MAX_CHAIN_BUCKETS) * (1 + BUCKET_SLOTS));
            let lines = place.bytes as usize / LINE_BYTES;
            let bytes: Vec<u8> = content.by_ref().take(lines).flatten().collect();
            step = match reader.feed(&bytes) {
                Step::Read(reader) => Step::Read(reader),
                Step::Ask(reason) => Step::Ask(reason),
                Step::Found { .. } => break,
            };
        }
    }

    #[test]
    fn hostile_grants_are_an_error_or_checked(bytes in prop::collection::vec(any::<u8>(), 0..200), cut in any::<prop::sample::Index>(), flip in any::<u8>()) {
        check_grant(postcard::from_bytes(&bytes).ok(), &[0, 1, u32::MAX]);
        let mut sealed = postcard::to_allocvec(&grant()).expect("memory suffices");
        let at = cut.index(sealed.len());
        prop_assert!(postcard::from_bytes::<Grant>(&sealed[..at]).is_err());
        sealed[at] ^= flip;
        check_grant(postcard::from_bytes(&sealed).ok(), &[0, 1, 31, 32, 48, 100, 138, 140, u32::MAX - 255, u32::MAX]);
    }

    #[test]
    fn a_clock_is_never_bounded_from_below(asked in 0..1_u64 << 40, answered in 0..1_u64 << 40, wait in 0..1_u64 << 34, then in 0..1_u64 << 34, percent in 90..=110_u64, of_primary in 90..=110_u64) {
        // The primary answers `wait` ns of real time after the question, and the client looks `then` ns after that.
        let client = asked + (wait + then) * percent / 100;
        let primary = answered + then * of_primary / 100;
        let sample = ClockSample { asked, answered };
        prop_assert!(sample.latest(client) + 2 >= primary, "rounded down here by up to 2 ns");
    }
}

/// A line of a hostile table: any bytes, or a bucket whose slots and link lead to granted lines.
fn hostile_line() -> impl Strategy<Value = [u8; LINE_BYTES]> {
    let fingerprint = fingerprint(filter::hash(b"key"));
    let line = prop_oneof![Just(100_u32), Just(102), Just(101), Just(u32::MAX - 255), Just(40), any::<u32>()];
    let slot = (line, any::<u16>(), 0..3_u16).prop_map(move |(line, tag, lines)| {
        Slot { fingerprint, tag: tag & 0xfff, lines: lines + 1, line: Line(line.max(1)) }.word()
    });
    let link = prop_oneof![Just(0_u64), Just(40), Just(41), Just(100), any::<u64>()];
    let bucket = (prop::collection::vec(prop_oneof![Just(0_u64), slot], BUCKET_SLOTS), link);
    let bucket = bucket.prop_map(|(slots, link)| {
        let mut line = [0; LINE_BYTES];
        for (bytes, word) in line.chunks_mut(WORD_BYTES).zip(slots.into_iter().chain([link])) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        line
    });
    let record = any::<u64>().prop_map(|lsn| {
        let words = encode(lsn.max(1), b"other", b"value");
        *lines(words).first_chunk().expect("it is a line")
    });
    prop_oneof![
        bucket,
        record,
        prop::array::uniform32(any::<u16>()).prop_map(|halves| {
            let mut line = [0; LINE_BYTES];
            for (bytes, half) in line.chunks_mut(2).zip(halves) {
                bytes.copy_from_slice(&half.to_le_bytes());
            }
            line
        })
    ]
}

/// Whether a read is within one extent of the grant.
fn is_granted(grant: &Grant, place: BytesToRead) -> bool {
    place.bytes > 0
        && grant.extents.iter().any(|extent| {
            let end = extent.offset + u64::from(extent.lines) * LINE_BYTES as u64;
            extent.memory == place.memory
                && place.offset >= extent.offset
                && place.offset + u64::from(place.bytes) <= end
        })
}

/// A grant that was decoded leads to granted places only, and has its home buckets.
fn check_grant(grant: Option<Grant>, lines: &[u32]) {
    let Some(grant) = grant else { return };
    assert!([0, grant.buckets - 1].into_iter().all(|line| grant.bucket_place(Line(line)).is_some()));
    for line in lines.iter().map(|line| Line(*line)) {
        let places = [1, 2, MAX_CLASS_LINES].map(|lines| grant.record_place(line, lines));
        for place in places.into_iter().flatten().chain(grant.bucket_place(line)) {
            assert!(is_granted(&grant, place), "{place:?}");
        }
    }
}

#[test]
fn an_empty_slot_is_zero_and_no_slot_leads_to_a_home_bucket() {
    assert_eq!(Slot::from_word(0), None);
    assert_eq!(Slot::from_word(u64::MAX << 32), None);
}

#[test]
fn pairs_that_are_too_long_have_no_record() {
    assert_eq!(record_lines(1, 0), Some(1));
    assert_eq!(record_lines(16, 32), Some(1));
    assert_eq!(record_lines(16, 33), Some(2));
    assert_eq!(record_lines(16, MAX_RECORD_BYTES - 32), Some(MAX_CLASS_LINES));
    assert_eq!(record_lines(16, MAX_RECORD_BYTES - 31), None);
    assert_eq!(record_lines(MAX_KEY_BYTES, MAX_RECORD_BYTES - MAX_KEY_BYTES - RECORD_HEADER_BYTES), Some(256));
    assert_eq!(record_lines(MAX_KEY_BYTES + 1, 0), None);
    assert_eq!(record_lines(0, 1), None);
    assert_eq!(record_lines(1, usize::MAX), None);
}

#[test]
fn a_version_is_published_slot_first_and_its_first_word_last() {
    let record = encode(300, b"key", b"value");
    let place = SlotPlace { bucket: Line(3), index: 6 };
    let slot = Slot { fingerprint: 5, tag: tag(Lsn(300)), lines: 1, line: PLACE.line };
    let words: Vec<u64> = record.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
    let at = |line: u64, word: u64| line * 64 + word * 8;
    let expected =
        [(at(3, 6), slot.word()), (at(9, 1), words[1]), (at(9, 2), words[2]), (at(9, 0), 300), (at(8, 0), 0)];
    let writes: Vec<(u64, u64)> =
        publish(place, slot, &record, Some(Line(8))).map(|write| (write.at, write.word)).collect();
    assert_eq!(writes, expected);
    assert!(publish(place, slot, &record, None).map(|write| (write.at, write.word)).eq(expected[..4].iter().copied()));
    assert_eq!(clear(place, Line(8)).map(|write| (write.at, write.word)), [(at(3, 6), 0), (at(8, 0), 0)]);
    assert_eq!(link(Line(3), Line(40)), WordWrite { at: at(3, 7), word: 40 });
}

#[test]
fn a_line_is_found_in_its_extent() {
    let grant = grant();
    let bucket = |line| grant.bucket_place(Line(line)).map(|place| (place.memory, place.offset, place.bytes));
    let record =
        |line, lines| grant.record_place(Line(line), lines).map(|place| (place.memory, place.offset, place.bytes));
    assert_eq!(bucket(0), Some((0, 0, 64)));
    assert_eq!(bucket(31), Some((0, 31 * 64, 64)));
    assert_eq!(bucket(32), Some((1, 64, 64)));
    assert_eq!(bucket(47), Some((1, 16 * 64, 64)));
    assert_eq!([bucket(48), bucket(99), bucket(100), bucket(u32::MAX)], [None; 4]);
    assert_eq!(record(100, 1), Some((0, 32 * 64, 64)));
    assert_eq!(record(102, 2), Some((0, 34 * 64, 128)));
    assert_eq!(record(u32::MAX - 255, 256), Some((1, 1 << 40, 16 << 10)));
    let beside = [record(101, 1), record(100, 3), record(100, 0), record(140, 1), record(99, 1), record(5, 1)];
    assert_eq!(beside, [None; 6]);
    assert_eq!(record(u32::MAX, 1), None, "inside of a record");
}

#[test]
fn grants_that_no_primary_makes_are_refused() {
    type Change = fn(&mut GrantFields);
    let changes: [(&str, Change); 14] = [
        ("no nonce", |grant| grant.nonce = 0),
        ("no buckets", |grant| grant.buckets = 0),
        ("home buckets that are not there", |grant| grant.buckets = 49),
        ("extents that do not ascend", |grant| grant.extents.rotate_left(1)),
        ("records where home buckets are", |grant| grant.extents[1].content = Content::Records { class: 1 }),
        ("a class of 0", |grant| grant.extents[2].content = Content::Records { class: 0 }),
        ("a class that is too large", |grant| grant.extents[2].content = Content::Records { class: 257 }),
        ("a part of a record", |grant| grant.extents[2].lines = 39),
        ("extents that overlap", |grant| grant.extents[2].first = Line(47)),
        ("more lines than a slot can lead to", |grant| grant.extents[3].lines = 512),
        ("an offset between lines", |grant| grant.extents[3].offset = 1),
        ("an offset beyond all memory", |grant| grant.extents[3].offset = u64::MAX - 63),
        ("a memory that is not there", |grant| grant.extents[3].memory = 2),
        ("a board that is not there", |grant| grant.board.memory = 2),
    ];
    for (what, change) in changes {
        let mut fields = fields();
        change(&mut fields);
        assert!(Grant::try_from(fields).is_err(), "{what}");
    }
}

#[test]
fn a_key_outside_of_the_grant_is_not_looked_for() {
    let grant = grant();
    assert!(grant.contains(b"a") && grant.contains(b"lzz") && !grant.contains(b"m") && !grant.contains(b""));
    assert_eq!(Reader::begin(&grant, b"m"), Step::Ask(Reason::OutOfBounds));
    let by_hash = |start: &'static [u8], end: Option<&'static [u8]>| {
        let (start, end) = (Bytes::from_static(start), end.map(Bytes::from_static));
        Grant::try_from(GrantFields { partition: Partition::Hash { tokens: 2 }, start, end, ..fields() })
            .expect("a grant")
    };
    let (low, high) = (by_hash(b"", Some(&[0x80])), by_hash(&[0x80], None));
    for key in [&b"a"[..], b"b", b"c", b"d"] {
        let is_high = Partition::Hash { tokens: 2 }.place(key)[0] >= 0x80;
        assert_eq!((low.contains(key), high.contains(key)), (!is_high, is_high));
    }
}

#[test]
fn an_answer_counts_while_the_primary_has_its_lease() {
    let board = Board { nonce: NONCE, readable_until: 1_000 };
    let sample = ClockSample { asked: 50, answered: 600 };
    assert_eq!(sample.latest(50), 600);
    assert_eq!(sample.latest(51), 602, "rounded up");
    assert!(sample.is_readable(369, board.readable_until) && sample.latest(369) == 999);
    assert!(!sample.is_readable(370, board.readable_until), "1,000 is the first instant of another primary");
    assert!(!sample.is_readable(49, board.readable_until), "a clock that goes back is none");
    assert_eq!(sample.latest(u64::MAX), u64::MAX);
    assert!(!sample.is_readable(u64::MAX, u64::MAX));
}

#[test]
fn a_board_is_of_its_table_and_of_one_instant() {
    let bytes = |words: [u64; 2]| words.map(u64::to_le_bytes).concat();
    let (old, new) =
        (Board { nonce: NONCE, readable_until: 1 << 40 }, Board { nonce: NONCE, readable_until: (1 << 40) + 1 });
    assert_eq!(Board::read(NONCE, &bytes(old.words())), Some(old));
    assert_eq!(Board::read(NONCE + 1, &bytes(old.words())), None, "another table");
    assert_eq!(Board::read(NONCE, &bytes([old.words()[0], new.words()[1]])), None, "torn");
    assert_eq!(Board::read(NONCE, &bytes([new.words()[0], old.words()[1]])), None, "torn");
    assert_eq!(Board::read(NONCE, &bytes([0, 0])), None, "never written");
    assert_eq!(Board::read(0, &bytes([0, 0])), None);
    assert_eq!(Board::read(NONCE, &bytes(old.words())[..15]), None);
}
